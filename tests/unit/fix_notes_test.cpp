// What repairs make of sections of notes.
// For both classes and byte orders.

#include "libprobe/audit/read_probes.hpp"
#include "repaired_file.hpp"

namespace reprobe::test {

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

}  // namespace reprobe::test
