// A small program as linkers make it, with probes for the consumers' rules: code, a counter in
// .probes, notes, .stapsdt.base. Tests change one thing of it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/tracers/consumers.hpp"

namespace reprobe::test {

struct Judged {
  std::shared_ptr<const ByteSource> source;
  ProbeFile probes;
  std::map<std::string, ConsumerVerdict> by_name;

  const ConsumerVerdict& of(const std::string& name) const {
    REQUIRE(by_name.count(name) == 1);
    return by_name.at(name);
  }
  // "list:base-missing attach:sibling" of a probe, in the order of the steps; "" where it is
  // traced.
  std::string failures(const std::string& name, std::size_t probe) const {
    std::string all;
    for (const ConsumerFailure& failure : of(name).failures) {
      if (failure.probe != probe) continue;
      if (!all.empty()) all += ' ';
      all += std::string(to_string(failure.what)) + ':' + std::string(failure.reason);
    }
    return all;
  }
};

inline Judged judged(Bytes file) {
  Judged result{memory_source(std::move(file)), {}, {}};
  const auto elf = ElfFile::open(result.source);
  REQUIRE(elf);
  result.probes = read_probes(*elf);
  for (ConsumerVerdict& verdict : consumer_verdicts(*elf, result.probes)) {
    result.by_name.emplace(verdict.consumer, std::move(verdict));
  }
  return result;
}

// Sites at kText and kText + 1 (two nops, then ret). Code has the same distance between address
// and offset as the base, so that perf is right.
class ProgramBuilder {
 public:
  static constexpr std::uint64_t kText = 0x1000, kBase = 0x2000, kCounters = 0x3000;

  explicit ProgramBuilder(ElfBuilder::Kind kind = {}) : elf(kind) {
    probes = {{.location = kText, .base = kBase, .provider = "demo", .name = "plain"},
              {.location = kText + 1,
               .base = kBase,
               .semaphore = kCounters,
               .provider = "demo",
               .name = "sema"}};
  }

  ElfBuilder elf;
  std::vector<NewProbe> probes;
  Bytes code = bytes_of({0x90, 0x90, 0xc3});
  bool has_base{true};
  std::string counters{".probes"};  // name of the section with the counter
  std::uint32_t counter_flags{PF_R | PF_W};
  NewSection notes{.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4};
  std::vector<NewSection> more_notes;  // further note sections

  Bytes joined(std::size_t from, std::size_t to) const {
    Bytes all;
    for (std::size_t i = from; i < to; ++i) {
      const Bytes note = elf.stapsdt(probes[i]);
      all.insert(all.end(), note.begin(), note.end());
    }
    return all;
  }

  // `bytes` empty: the notes of `probes`.
  Judged judge(Bytes bytes = {}) {
    const auto id = elf.section(
        {.name = ".note.gnu.build-id",
         .type = SHT_NOTE,
         .align = 4,
         .bytes = elf.note(std::string_view("GNU", 4), NT_GNU_BUILD_ID, Bytes(20, std::byte{7}))});
    static_cast<void>(id);
    const auto text = elf.section(
        {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = kText, .bytes = code});
    elf.load(PF_R | PF_X, text);
    if (has_base) {
      const auto base = elf.section(
          {.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = kBase, .bytes = Bytes(1)});
      elf.load(PF_R, base);
    }
    const auto data = elf.section(
        {.name = counters, .flags = SHF_ALLOC | SHF_WRITE, .addr = kCounters, .bytes = Bytes(4)});
    elf.load(counter_flags, data);
    notes.bytes = bytes.empty() ? joined(0, probes.size()) : std::move(bytes);
    elf.section(notes);
    for (const NewSection& section : more_notes) elf.section(section);
    elf.symbol({.name = "main", .value = kText, .size = code.size(), .type = STT_FUNC, .shndx = 2});
    return judged(elf.build());
  }
};

}  // namespace reprobe::test
