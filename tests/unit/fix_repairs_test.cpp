// What repairs make of the base and of the order of headers, and which of them are made.
// For both classes and byte orders.

#include "libprobe/audit/read_probes.hpp"
#include "repaired_file.hpp"

namespace reprobe::test {

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
