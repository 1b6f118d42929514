// A file for the repairs of plan_fix(), and what every repair promises: verify proves it, a second
// run changes nothing, and no loaded byte changes.
#pragma once

#include <string>

#include "catch.hpp"
#include "code_bytes.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/rewrite/fix.hpp"
#include "libprobe/verify/compare.hpp"

namespace reprobe::test {

inline constexpr std::uint64_t kText = 0x11000, kCode = 16, kData = 0x23000, kRodata = 0x800;
inline constexpr std::uint64_t kBase = kRodata + 0x40;

// A program as lld lays it out: read-only data with .stapsdt.base where address and offset are
// equal, code and data each farther away. The tests change it before build().
struct Program {
  explicit Program(ElfBuilder::Kind kind) : elf(kind) {}

  Bytes note(const std::string& name, std::uint64_t semaphore, const std::string& arguments = "") {
    return elf.stapsdt({.location = kText,
                        .base = has_base ? kBase : 0,
                        .semaphore = semaphore,
                        .provider = "p",
                        .name = name,
                        .arguments = arguments});
  }

  Bytes build() {
    const auto rodata =
        elf.section({.name = ".rodata", .flags = SHF_ALLOC, .addr = kRodata, .bytes = Bytes(0x40)});
    const auto end =
        has_base
            ? elf.section(
                  {.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = kBase, .bytes = Bytes(1)})
            : rodata;
    if (has_base) base = end;
    Bytes code(kCode, std::byte{0xcc});
    code[0] = std::byte{0x90};
    text = elf.section(
        {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = kText, .bytes = code});
    const auto fini = elf.section({.name = ".fini",
                                   .flags = SHF_ALLOC | SHF_EXECINSTR,
                                   .addr = kText + 0x20,
                                   .bytes = bytes_of({0xc3})});
    if (early_notes) add_notes();
    data = elf.section(
        {.name = counters, .flags = SHF_ALLOC | SHF_WRITE, .addr = kData, .bytes = Bytes(8)});
    if (unmapped != 0) {
      elf.section(
          {.name = ".lost", .flags = SHF_ALLOC | SHF_WRITE, .addr = unmapped, .bytes = Bytes(8)});
    }
    comment = elf.section({.name = ".comment", .bytes = bytes_of("compiler")});
    if (!early_notes) add_notes();
    elf.load(PF_R, rodata, end);
    elf.load(PF_R | PF_X | (merged ? PF_W : 0), text, fini);
    elf.load(PF_R | PF_W, data);
    if (has_base) {
      elf.symbol({.name = "_.stapsdt.base",
                  .value = kBase,
                  .size = 1,
                  .binding = STB_LOCAL,
                  .shndx = base});
    }
    elf.symbol({.name = "f", .value = kText, .size = kCode, .type = STT_FUNC, .shndx = text});
    for (NewSymbol symbol : symbols) {
      symbol.shndx = data;
      elf.symbol(symbol);
    }
    return elf.build();
  }

  void add_notes() {
    for (const Bytes& bytes : notes) {
      note_sections.push_back(elf.section({.name = ".note.stapsdt",
                                           .type = note_type,
                                           .flags = note_flags,
                                           .align = 4,
                                           .bytes = bytes}));
    }
  }

  ElfBuilder elf;
  bool has_base{true}, early_notes{};
  bool merged{};             // the code may be written
  std::uint64_t unmapped{};  // of an allocated section in no segment; 0: there is none
  std::string counters{".probes"};
  std::vector<Bytes> notes;  // one section each
  std::uint32_t note_type{SHT_NOTE};
  std::uint64_t note_flags{};
  std::vector<NewSymbol> symbols;
  std::uint32_t base{}, text{}, data{}, comment{};
  std::vector<std::uint32_t> note_sections;
};

inline std::vector<ElfBuilder::Kind> kinds() {
  std::vector<ElfBuilder::Kind> all;
  for (const bool is64 : {true, false}) {
    for (const auto order : {std::endian::little, std::endian::big}) {
      // The nop of x86 in a file of the other order: nothing here asks the machine for more.
      all.push_back({.is64 = is64, .order = order});
    }
  }
  return all;
}

inline ElfFile open(const Bytes& file) {
  auto opened = ElfFile::open(borrowed_source(file));
  REQUIRE(opened);
  return std::move(*opened);
}

struct Outcome {
  FixPlan fix;
  Bytes bytes;
};

// The loaded bytes outside of the ELF header, segment by segment.
inline Bytes loaded(const Bytes& bytes) {
  const ElfFile file = open(bytes);
  Bytes all;
  for (const Segment& segment : file.segments()) {
    const auto slice = file.source().slice(segment.offset, segment.filesz, "a segment");
    all.insert(all.end(), slice->begin(), slice->end());
  }
  return all;
}

// Plans and applies; checks what every repair promises.
inline Outcome repair(const Bytes& before, const FixOptions& options = {}) {
  const ElfFile file = open(before);
  auto fix = plan_fix(file, read_probes(file), options);
  REQUIRE(fix);
  auto output = apply(fix->plan, file.source());
  REQUIRE(output);
  Outcome outcome{std::move(*fix), std::move(*output)};
  const ElfFile after = open(outcome.bytes);
  CHECK(after.problems().empty());
  const CompareOptions proof{.allow_respelled = options.respell};
  for (const Finding& finding : compare(file, after, proof)) {
    CAPTURE(finding.rule, finding.message);
    CHECK(false);
  }
  CHECK(loaded(before) == loaded(outcome.bytes));
  const auto again = plan_fix(after, read_probes(after), options);
  REQUIRE(again);
  CHECK(again->plan.empty());
  return outcome;
}

inline std::vector<std::string> rules(const FixPlan& fix) {
  std::vector<std::string> names;
  for (const Repair& repair : fix.repairs) names.push_back(repair.rule);
  return names;
}

using Rules = std::vector<std::string>;

// The .symtab entry of that name.
inline std::optional<Symbol> symbol(const ElfFile& file, std::string_view name) {
  const auto all = file.symbols(*file.section(".symtab"));
  REQUIRE(all);
  for (const Symbol& entry : *all) {
    if (entry.name == name) return entry;
  }
  return std::nullopt;
}

inline FixOptions only(const std::string& rule) {
  FixOptions options;
  options.repairs = RepairChoice::of(std::vector<std::string>{rule}, {}).value();
  return options;
}

}  // namespace reprobe::test
