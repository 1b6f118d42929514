// A healthy program with probes for the tests of audit's rules: nothing is found in it, and each
// test changes one thing.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/audit/rules.hpp"
#include "libprobe/probes/semaphore.hpp"

namespace reprobe::test {

struct AuditFile {
  ElfBuilder::Kind kind{};
  std::vector<NewProbe> probes{};
  std::vector<NewSymbol> symbols{};  // shndx 1 is .text, 2 .stapsdt.base, 3 .probes, 4 .data
  Bytes code = Bytes(0x100, std::byte{0x90});
  std::uint64_t code_address = 0x1000;
  std::uint64_t base_address = 0x2000;
  std::string counters = ".probes";
  std::uint32_t counters_flags = PF_R | PF_W;
  bool counters_nobits = false;
  std::size_t build_id = 20;  // bytes; 0: none
  bool notes_first = false;   // .note.stapsdt before all other sections
  bool notes = true;
  bool comment = true;                      // a section that is not loaded, and no note
  std::vector<NewSegment> more_segments{};  // behind the others
  Bytes counter_bytes = Bytes(0x10);

  static constexpr std::uint64_t kCounters = 0x3000;
  static constexpr std::uint64_t kData = 0x4000;

  Bytes build() const {
    ElfBuilder elf(kind);
    if (notes_first) add_notes(elf);
    const auto text = elf.section(
        {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = code_address, .bytes = code});
    const auto base = elf.section(
        {.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = base_address, .bytes = Bytes(1)});
    NewSection section{.name = counters,
                       .flags = SHF_ALLOC | SHF_WRITE,
                       .addr = kCounters,
                       .align = 2,
                       .bytes = counter_bytes};
    if (counters_nobits) {
      section.type = SHT_NOBITS;
      section.size = section.bytes.size();
      section.bytes.clear();
    }
    const auto probes_section = elf.section(section);
    const auto data = elf.section(
        {.name = ".data", .flags = SHF_ALLOC | SHF_WRITE, .addr = kData, .bytes = Bytes(0x10)});
    elf.load(PF_R | PF_X, text);
    elf.load(PF_R, base);
    elf.load(counters_flags, probes_section);
    elf.load(PF_R | PF_W, data);
    if (build_id != 0) {
      const auto id = elf.section({.name = ".note.gnu.build-id",
                                   .type = SHT_NOTE,
                                   .flags = SHF_ALLOC,
                                   .addr = 0x2800,
                                   .align = 4,
                                   .bytes = elf.note(std::string_view("GNU", 4), NT_GNU_BUILD_ID,
                                                     Bytes(build_id, std::byte{0x5a}))});
      elf.load(PF_R, id, 0, PT_NOTE);
    }
    if (notes && !notes_first) add_notes(elf);
    if (comment) elf.section({.name = ".comment", .bytes = bytes_of("GCC")});
    for (const NewSegment& segment : more_segments) elf.segment(segment);
    for (const NewSymbol& symbol : symbols) elf.symbol(symbol);
    return elf.build();
  }

  void add_notes(ElfBuilder& elf) const {
    Bytes bytes;
    for (NewProbe probe : probes) {
      if (probe.base == 0) probe.base = base_address;
      const Bytes note = elf.stapsdt(probe);
      bytes.insert(bytes.end(), note.begin(), note.end());
    }
    elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = bytes});
  }

  // "error rule provider:name" of each finding, "error rule" of one about the file, sorted.
  std::vector<std::string> found() const { return found_in(build()); }

  static std::vector<std::string> found_in(const Bytes& bytes) {
    std::vector<std::string> lines;
    for (const Finding& finding : findings(bytes)) {
      std::string line = finding.severity == Severity::error     ? "error "
                         : finding.severity == Severity::warning ? "warning "
                                                                 : "note ";
      line += finding.rule;
      if (!finding.name.empty()) line += " " + finding.provider + ":" + finding.name;
      CHECK(!finding.message.empty());
      CHECK(!finding.hint.empty());
      lines.push_back(line);
    }
    std::ranges::sort(lines);
    return lines;
  }

  static std::vector<Finding> findings(const Bytes& bytes) {
    const auto file = ElfFile::open(memory_source(bytes));
    REQUIRE(file);
    return audit(*file, read_probes(*file));
  }

  std::vector<SemaphoreFacts> semaphores() const {
    const auto file = ElfFile::open(memory_source(build()));
    REQUIRE(file);
    auto all = read_semaphores(*file, read_probes(*file));
    // They point into the file, which ends here.
    for (SemaphoreFacts& facts : all) {
      facts.section = nullptr;
      facts.segment = nullptr;
    }
    return all;
  }
};

using Lines = std::vector<std::string>;

}  // namespace reprobe::test
