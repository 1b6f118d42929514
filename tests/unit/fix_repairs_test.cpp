// The repairs of plan_fix() that change section headers, symbols and fields: what each makes of a
// file with one fault, for both classes and byte orders; that verify proves it, that a second run
// changes nothing, and that no loaded byte changes.

#include <string>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/rewrite/fix.hpp"
#include "libprobe/verify/compare.hpp"

namespace reprobe::test {
namespace {

constexpr std::uint64_t kText = 0x11000, kCode = 16, kData = 0x23000, kRodata = 0x800;
constexpr std::uint64_t kBase = kRodata + 0x40;

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

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
    comment = elf.section({.name = ".comment", .bytes = bytes_of("compiler")});
    if (!early_notes) add_notes();
    elf.load(PF_R, rodata, end);
    elf.load(PF_R | PF_X, text, fini);
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
  std::string counters{".probes"};
  std::vector<Bytes> notes;  // one section each
  std::uint32_t note_type{SHT_NOTE};
  std::uint64_t note_flags{};
  std::vector<NewSymbol> symbols;
  std::uint32_t base{}, text{}, data{}, comment{};
  std::vector<std::uint32_t> note_sections;
};

std::vector<ElfBuilder::Kind> kinds() {
  std::vector<ElfBuilder::Kind> all;
  for (const bool is64 : {true, false}) {
    for (const auto order : {std::endian::little, std::endian::big}) {
      // The nop of x86 in a file of the other order: nothing here asks the machine for more.
      all.push_back({.is64 = is64, .order = order});
    }
  }
  return all;
}

ElfFile open(const Bytes& file) {
  auto opened = ElfFile::open(borrowed_source(file));
  REQUIRE(opened);
  return std::move(*opened);
}

struct Outcome {
  FixPlan fix;
  Bytes bytes;
};

// The loaded bytes outside of the ELF header, segment by segment.
Bytes loaded(const Bytes& bytes) {
  const ElfFile file = open(bytes);
  Bytes all;
  for (const Segment& segment : file.segments()) {
    const auto slice = file.source().slice(segment.offset, segment.filesz, "a segment");
    all.insert(all.end(), slice->begin(), slice->end());
  }
  return all;
}

// Plans and applies; checks what every repair promises.
Outcome repair(const Bytes& before, const FixOptions& options = {}) {
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

std::vector<std::string> rules(const FixPlan& fix) {
  std::vector<std::string> names;
  for (const Repair& repair : fix.repairs) names.push_back(repair.rule);
  return names;
}

using Rules = std::vector<std::string>;

// The .symtab entry of that name.
std::optional<Symbol> symbol(const ElfFile& file, std::string_view name) {
  const auto all = file.symbols(*file.section(".symtab"));
  REQUIRE(all);
  for (const Symbol& entry : *all) {
    if (entry.name == name) return entry;
  }
  return std::nullopt;
}

FixOptions only(const std::string& rule) {
  FixOptions options;
  options.repairs = RepairChoice::of(std::vector<std::string>{rule}, {}).value();
  return options;
}

}  // namespace

TEST_CASE("base-delta: the base and its symbol move into the gap behind the code") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    program.notes = {program.note("one", 0)};
    const auto [fix, bytes] = repair(program.build());
    CHECK(rules(fix) == Rules{"base-delta"});
    const ElfFile after = open(bytes);
    const Section& base = *after.section(".stapsdt.base");
    const Section& text = *after.section(".text");
    CHECK(base.addr == VirtAddr{kText + kCode});
    CHECK(base.addr.value - base.offset.value == text.addr.value - text.offset.value);
    CHECK(base.size == Size{0});
    CHECK(base.index == program.base);
    const auto moved = symbol(after, "_.stapsdt.base");
    REQUIRE(moved);
    CHECK(moved->value == base.addr);
    CHECK(moved->size == Size{0});
    CHECK(symbol(after, "f")->value == VirtAddr{kText});
    const ProbeFile probes = read_probes(after);
    CHECK(probes.probes[0].note.base == base.addr);
    CHECK(probes.probes[0].site == VirtAddr{kText});
  }
}

TEST_CASE("base-delta: a symbol that does not stand at the base is not moved") {
  Program program({});
  program.notes = {program.note("one", 0)};
  Bytes file = program.build();
  program.elf.poke(file, program.elf.sym(1, "st_value"), kBase + 4);
  const auto [fix, bytes] = repair(file);
  CHECK(bytes == file);
  REQUIRE(fix.refused.size() == 1);
  CHECK(fix.refused[0].reason == "base-delta: a symbol does not stand at its start");
}

TEST_CASE("base-delta: the base leaves the inside of another section") {
  const std::uint64_t inside = kText + kCode - 1;
  Program program({});
  program.notes = {
      program.elf.stapsdt({.location = kText, .base = inside, .provider = "p", .name = "one"})};
  Bytes file = program.build();
  program.elf.poke(file, program.elf.shdr(program.base, "sh_addr"), inside);
  program.elf.poke(file, program.elf.shdr(program.base, "sh_offset"),
                   program.elf.offset(program.text) + kCode - 1);
  program.elf.poke(file, program.elf.shdr(program.base, "sh_size"), 0);
  program.elf.poke(file, program.elf.sym(1, "st_value"), inside);
  program.elf.poke(file, program.elf.sym(1, "st_size"), 0);
  const auto [fix, bytes] = repair(file);
  CHECK(open(bytes).section(".stapsdt.base")->addr == VirtAddr{kText + kCode});
}

TEST_CASE("base-missing: the base is put back in the gap behind the code") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    program.has_base = false;
    program.notes = {program.note("one", 0)};
    const auto [fix, bytes] = repair(program.build());
    CHECK(rules(fix) == Rules{"base-missing"});
    const ElfFile after = open(bytes);
    CHECK(after.section(".stapsdt.base")->addr == VirtAddr{kText + kCode});
    CHECK(read_probes(after).probes[0].note.base == VirtAddr{kText + kCode});
  }
}

TEST_CASE("section-order: the notes and a section behind .probes change places") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    program.early_notes = true;
    program.notes = {program.note("one", kData)};
    program.symbols = {{.name = "p_one_semaphore", .value = kData, .size = 2, .type = STT_OBJECT}};
    const auto [fix, bytes] = repair(program.build(), only("section-order"));
    CHECK(rules(fix) == Rules{"section-order"});
    const ElfFile after = open(bytes);
    CHECK(after.section(".note.stapsdt")->index == program.comment);
    CHECK(after.section(".comment")->index == program.note_sections[0]);
    CHECK(symbol(after, "p_one_semaphore")->shndx == program.data);
  }
}

TEST_CASE("section-order: numbers in headers and symbols follow") {
  Program program({});
  program.early_notes = true;
  program.notes = {program.note("one", kData)};
  Bytes file = program.build();
  // Nothing but .symtab and the names stand behind .probes: .comment becomes loaded.
  program.elf.poke(file, program.elf.shdr(program.comment, "sh_flags"), SHF_ALLOC);
  const auto [fix, bytes] = repair(file, only("section-order"));
  const ElfFile after = open(bytes);
  const Section* table = after.section(".symtab");
  REQUIRE(table != nullptr);
  CHECK(table->index == program.note_sections[0]);
  CHECK(after.section(".note.stapsdt")->index == program.elf.symtab());
  CHECK(after.section_at(table->link)->name == ".strtab");
  CHECK(symbol(after, "f"));
}

TEST_CASE("note-sections: several sections become one, and the header table is as much shorter") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    program.notes = {program.note("one", 0), program.note("two", 0), program.note("three", 0)};
    const Bytes all = program.notes[0] + program.notes[1] + program.notes[2];
    const Bytes file = program.build();
    const auto [fix, bytes] = repair(file, only("note-sections"));
    CHECK(rules(fix) == Rules{"note-sections"});
    const ElfFile after = open(bytes);
    CHECK(after.sections().size() == open(file).sections().size() - 2);
    const auto notes = after.contents(*after.section(".note.stapsdt"));
    REQUIRE(notes);
    CHECK(Bytes(notes->begin(), notes->end()) == all);
    CHECK(symbol(after, "f")->shndx == program.text);
  }
}

TEST_CASE("note-sections: a file with very many is left as it is") {
  Program program({});
  for (int i = 0; i < 65; ++i) program.notes.push_back(program.note("one", 0));
  const Bytes file = program.build();
  const auto [fix, bytes] = repair(file);
  CHECK(bytes == file);
  REQUIRE(fix.refused.size() == 1);
  CHECK(fix.refused[0].reason == "note-sections: more sections than any linker leaves");
}

TEST_CASE("note-alloc: the notes get a section that is not loaded") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    program.notes = {program.note("one", 0)};
    program.note_flags = SHF_ALLOC;
    const auto [fix, bytes] = repair(program.build(), only("note-alloc"));
    CHECK(rules(fix) == Rules{"note-alloc"});
    const ElfFile after = open(bytes);
    const Section* notes = after.section(".note.stapsdt");
    REQUIRE(notes != nullptr);
    CHECK_FALSE(notes->allocated());
    CHECK(notes->type == SHT_NOTE);
    const Section* old = after.section_at(program.note_sections[0]);
    CHECK(old->name == ".stapsdt.loaded");
    CHECK(old->type == SHT_PROGBITS);
    CHECK(read_probes(after).probes.size() == 1);
  }
}

TEST_CASE("note-section-type: the section is marked as what it holds") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    program.notes = {program.note("one", 0)};
    program.note_type = SHT_PROGBITS;
    const Bytes before = program.build();
    const auto [fix, bytes] = repair(before, only("note-section-type"));
    CHECK(rules(fix) == Rules{"note-section-type"});
    const ElfFile after = open(bytes);
    const Section* notes = after.section_at(program.note_sections[0]);
    CHECK(notes->type == SHT_NOTE);
    CHECK(read_probes(after).probes.size() == 1);
    CHECK(read_probes(after).scan.findings.empty());
    // Nothing but the type: one field of four bytes.
    CHECK(bytes.size() == before.size());
    const auto differing = std::inner_product(bytes.begin(), bytes.end(), before.begin(), 0,
                                              std::plus<>(), std::not_equal_to<>());
    CHECK(differing == 1);
  }
  // What is not asked for stays.
  Program program({});
  program.notes = {program.note("one", 0)};
  program.note_type = SHT_PROGBITS;
  const Bytes before = program.build();
  CHECK(repair(before, only("dangling")).bytes == before);
}

TEST_CASE("note-foreign: notes of other owners get a section of their own") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    const Bytes other = program.elf.note(std::string_view("other\0", 6), 7, bytes_of({1, 2, 3}));
    program.notes = {program.note("one", 0) + other + program.note("two", 0)};
    const auto [fix, bytes] = repair(program.build(), only("note-foreign"));
    CHECK(rules(fix) == Rules{"note-foreign"});
    const ElfFile after = open(bytes);
    CHECK(read_probes(after).scan.foreign.empty());
    CHECK(read_probes(after).probes.size() == 2);
    const auto moved = after.contents(*after.section(".note.foreign"));
    REQUIRE(moved);
    CHECK(Bytes(moved->begin(), moved->end()) == other);
  }
}

TEST_CASE("semaphore-section: .probes is added behind the counters, before the notes") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    program.counters = ".data";
    program.notes = {program.note("one", kData + 2)};
    const auto [fix, bytes] = repair(program.build(), only("semaphore-section"));
    CHECK(rules(fix) == Rules{"semaphore-section"});
    const ElfFile after = open(bytes);
    const Section* probes = after.section(".probes");
    REQUIRE(probes != nullptr);
    CHECK(probes->size == Size{0});
    CHECK(probes->index < after.section(".note.stapsdt")->index);
    CHECK(probes->index > program.text);
    // bcc's formula.
    const std::uint64_t at = kData + 2 - probes->addr.value + probes->offset.value;
    CHECK(FileOffset{at} == after.offset_of(VirtAddr{kData + 2}));
  }
}

TEST_CASE("semaphores: a field that points nowhere is corrected from the symbol, or cleared") {
  struct Case {
    std::uint64_t field;
    bool has_symbol;
    std::uint64_t wanted;
    Rules rules;
  };
  const auto c = GENERATE(values<Case>({
      {2, true, kData + 4, {"semaphore-dangling"}},
      {2, false, 0, {"semaphore-dangling"}},
      {0x7fff0000, false, 0, {"semaphore-dangling"}},
      {kText + 4, false, 0, {"semaphore-dangling"}},
      {0, true, kData + 4, {"semaphore-undefined"}},
      {0, false, 0, {}},
      {kData + 4, true, kData + 4, {}},
      {kData + 2, true, kData + 2, {}},       // a counter, if another one than the symbol's
      {kRodata + 2, false, kRodata + 2, {}},  // somewhere: a debugger can raise it
  }));
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big, c.field, c.has_symbol);
    Program program(kind);
    program.notes = {program.note("one", c.field)};
    if (c.has_symbol) {
      program.symbols = {
          {.name = "p_one_semaphore", .value = kData + 4, .size = 2, .type = STT_OBJECT}};
    }
    FixOptions options;
    options.repairs = RepairChoice::of({}, std::vector<std::string>{"base-delta"}).value();
    const auto [fix, bytes] = repair(program.build(), options);
    CHECK(rules(fix) == c.rules);
    CHECK(read_probes(open(bytes)).probes[0].note.semaphore == VirtAddr{c.wanted});
  }
}

TEST_CASE("semaphore-conflict: the counter that the symbol names wins") {
  Program program({});
  program.notes = {program.note("one", kData) + program.note("one", kData + 4)};
  SECTION("with the symbol") {
    program.symbols = {
        {.name = "p_one_semaphore", .value = kData + 4, .size = 2, .type = STT_OBJECT}};
    const auto [fix, bytes] = repair(program.build(), only("semaphore-conflict"));
    CHECK(rules(fix) == Rules{"semaphore-conflict"});
    for (const Probe& probe : read_probes(open(bytes)).probes) {
      CHECK(probe.note.semaphore == VirtAddr{kData + 4});
    }
  }
  SECTION("without it nobody knows") {
    const Bytes file = program.build();
    const auto [fix, bytes] = repair(file, only("semaphore-conflict"));
    CHECK(bytes == file);
    REQUIRE(fix.refused.size() == 1);
    CHECK(fix.refused[0].reason == "semaphore-conflict: no symbol tells which counter is right");
  }
}

TEST_CASE("arguments are respelled only where that is asked for") {
  Program program({});
  program.notes = {program.note("one", 0, "8@0x10(%rbp)")};
  const Bytes file = program.build();
  FixOptions options = only("arguments");
  CHECK(repair(file, options).bytes == file);
  options.respell = true;
  const auto [fix, bytes] = repair(file, options);
  CHECK(rules(fix) == Rules{"arguments"});
  CHECK(read_probes(open(bytes)).probes[0].note.arguments == "8@16(%rbp)");
  // Who did not ask for it takes the probe for another.
  CHECK_FALSE(compare(open(file), open(bytes), {}).empty());
}

TEST_CASE("a repair that is skipped, or not among the chosen ones, is not made") {
  Program program({});
  program.notes = {program.note("one", 2)};
  const Bytes file = program.build();
  CHECK(repair(file, only("note-alloc")).bytes == file);
  FixOptions options;
  options.repairs =
      RepairChoice::of({}, std::vector<std::string>{"base-delta", "semaphore-dangling"}).value();
  CHECK(repair(file, options).bytes == file);
  const auto unknown = RepairChoice::of(std::vector<std::string>{"no-such"}, {});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code == ErrorCode::usage);
  CHECK(unknown.error().hint.find("base-delta") != std::string::npos);
}

TEST_CASE("verify refuses what no repair makes of headers and symbols") {
  Program program({});
  program.early_notes = true;
  program.notes = {program.note("one", kData)};
  const Bytes file = program.build();
  const ElfFile before = open(file);
  const auto findings = [&](const Bytes& after) { return compare(before, open(after), {}).size(); };
  const Bytes good = repair(file).bytes;
  REQUIRE(findings(good) == 0);
  const ElfFile after = open(good);
  const auto poked = [&](std::uint64_t at, unsigned width, std::uint64_t value) {
    Bytes bad = good;
    store_uint(bad, static_cast<std::size_t>(at), width, std::endian::little, value);
    REQUIRE(bad != good);
    return bad;
  };
  // sh_link of .symtab, a symbol's section, the base's symbol, a loaded section's address.
  const Section& symtab = *after.section(".symtab");
  const std::uint64_t entries = symtab.offset.value;
  CHECK(findings(poked(symtab.header_offset.value + 40, 4, symtab.link + 1)) != 0);
  CHECK(findings(poked(entries + 2 * 24 + 6, 2, program.data)) != 0);
  CHECK(findings(poked(entries + 1 * 24 + 8, 8, kData)) != 0);
  CHECK(findings(poked(after.section(".text")->header_offset.value + 16, 8, kText + 1)) != 0);
  CHECK(findings(poked(after.section(".comment")->header_offset.value + 32, 8, 2)) != 0);
}

}  // namespace reprobe::test
