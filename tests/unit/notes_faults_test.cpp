// One fault at a time in a faultless note section of three probes a, b, c: what is still read,
// which rule names it, with which words and at which offset.
#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/notes/rules.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

struct File {
  ElfBuilder elf;
  Bytes notes;                       // of the section, to be changed before scan()
  std::vector<std::size_t> start{};  // of each note
  NewSection section{.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4};

  explicit File(ElfBuilder::Kind kind = {}) : elf(kind) {
    for (const char* name : {"a", "b", "c"}) {
      // descsz 24 + "prov" + a name + "8@%rax" and three NULs = 38, and two bytes of padding
      add(elf.stapsdt({.location = 0x1000,
                       .base = 0x2000,
                       .provider = "prov",
                       .name = name,
                       .arguments = "8@%rax"}));
    }
  }
  void add(const Bytes& bytes) {
    start.push_back(notes.size());
    notes.insert(notes.end(), bytes.begin(), bytes.end());
  }
  void insert(std::size_t at, const Bytes& bytes) {
    notes.insert(notes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin(), bytes.end());
  }
  void set(std::size_t note, std::size_t field, std::uint32_t value) {
    put(notes, {start.at(note) + field, 4}, elf.kind().order, value);
  }
};

struct ScannedNotes {
  std::shared_ptr<const ByteSource> source;
  NoteScan scan;
  std::size_t offset{};  // of the section in the file

  std::string names() const {
    std::string all;
    for (const Note& note : scan.notes) all += note.name + (note.canonical ? " " : "! ");
    return all;
  }
};

ScannedNotes scan(File& file) {
  file.section.bytes = file.notes;
  const auto index = file.elf.section(file.section);
  ScannedNotes result{memory_source(file.elf.build()), {}, 0};
  const auto elf = ElfFile::open(result.source);
  REQUIRE(elf);
  result.scan = scan_notes(*elf);
  result.offset = file.elf.offset(index);
  return result;
}

// Exactly one finding, and it is this one.
void check_finding(const ScannedNotes& found, std::string_view rule, Severity severity,
                   std::size_t at, const std::string& message) {
  REQUIRE(found.scan.findings.size() == 1);
  const Finding& finding = found.scan.findings[0];
  CHECK(finding.rule == rule);
  CHECK(finding.severity == severity);
  CHECK(finding.note_offset == found.offset + at);
  CHECK(finding.message == message);
  REQUIRE_FALSE(finding.evidence.empty());
  CHECK(finding.evidence[0] == note_rule(rule).breaks);
  CHECK_FALSE(finding.hint.empty());
}

constexpr std::size_t kNamesz = 0, kDescsz = 4, kType = 8;  // n_namesz, n_descsz, n_type

}  // namespace

TEST_CASE("the faultless file has no finding") {
  File file;
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  CHECK(found.scan.findings.empty());
}

TEST_CASE("SHF_ALLOC") {
  File file;
  file.section.flags = SHF_ALLOC;
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  check_finding(found, "note-alloc", Severity::error, 0,
                "sh_flags of section 1; expected no SHF_ALLOC, found 0x2");
}

TEST_CASE("a section that is not SHT_NOTE") {
  File other;
  other.section.type = SHT_STRTAB;
  CHECK(scan(other).names().empty());
  File file;
  file.section.type = SHT_PROGBITS;
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  check_finding(found, "note-section-type", Severity::error, 0,
                "type of section 1 (.note.stapsdt); expected SHT_NOTE (7), found 1");
}

TEST_CASE("a compressed section is not read") {
  File file;
  file.section.flags = SHF_COMPRESSED;
  const auto found = scan(file);
  CHECK(found.names().empty());
  CHECK(found.scan.stopped == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{1, 0}});
  check_finding(found, "note-unreadable", Severity::error, 0,
                "bytes of section 1; expected notes of its own in the file, found SHF_COMPRESSED");
}

TEST_CASE("two sections") {
  const std::uint16_t type = GENERATE(ET_DYN, ET_REL);
  File file({.type = type});
  file.section.bytes = file.notes;
  file.elf.section(file.section);
  const auto found = scan(file);
  CHECK(found.names() == "a b c a b c ");
  if (type == ET_REL) {  // one for each COMDAT group
    CHECK(found.scan.findings.empty());
  } else {
    check_finding(found, "note-sections", Severity::error, 0,
                  "sections named .note.stapsdt; expected section 1 only, found 2 too");
  }
}

TEST_CASE("two section headers over the same bytes are read once") {
  File file({.type = ET_REL});
  file.section.bytes = file.notes;
  const auto first = file.elf.section(file.section);
  const auto second = file.elf.section(file.section);
  Bytes bytes = file.elf.build();
  file.elf.poke(bytes, file.elf.shdr(second, "sh_offset"), file.elf.offset(first) + 4);
  const auto source = memory_source(bytes);
  const auto elf = ElfFile::open(source);
  REQUIRE(elf);
  const NoteScan found = scan_notes(*elf);
  CHECK(found.notes.size() == 3);
  REQUIRE(found.findings.size() == 1);
  CHECK(found.findings[0].rule == "note-unreadable");
  CHECK(found.findings[0].message ==
        "bytes of section 2; expected notes of its own in the file, found those of another note "
        "section");
  CHECK(found.stopped == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{2, 0}});
}

TEST_CASE("a section that lies outside the file") {
  File file;
  file.section.bytes = file.notes;
  const auto index = file.elf.section(file.section);
  Bytes bytes = file.elf.build();
  file.elf.poke(bytes, file.elf.shdr(index, "sh_size"), GENERATE(0x7fffffffffffffffU, 0x10000U));
  const auto source = memory_source(bytes);
  const auto elf = ElfFile::open(source);
  REQUIRE(elf);
  const NoteScan found = scan_notes(*elf);
  CHECK(found.notes.empty());
  REQUIRE(found.findings.size() == 1);
  CHECK(found.findings[0].rule == "note-unreadable");
}

TEST_CASE("type 4") {
  File file;
  file.set(1, kType, 4);
  const auto found = scan(file);
  CHECK(found.names() == "a b! c ");
  check_finding(found, "note-type", Severity::error, file.start[1],
                "type of the note; expected 3, found 4");
  CHECK(found.scan.findings[0].provider == "prov");
  CHECK(found.scan.findings[0].name == "b");
  CHECK(found.scan.findings[0].site == 0x1000);
}

TEST_CASE("type 4 without a probe's descriptor") {
  File file;
  file.insert(file.start[1],
              file.elf.note(std::string_view("stapsdt", 8), 4, Bytes(8, std::byte{1})));
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  REQUIRE(found.scan.foreign.size() == 1);
  CHECK(found.scan.foreign[0].owner == "stapsdt");
  CHECK(found.scan.foreign[0].type == 4);
  check_finding(found, "note-type", Severity::error, file.start[1],
                "type of the note; expected 3, found 4");
}

TEST_CASE("a foreign note") {
  File file;
  const Bytes gnu = file.elf.note(std::string_view("GNU", 4), 1, Bytes(20, std::byte{9}));
  file.insert(file.start[1], gnu);
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  REQUIRE(found.scan.foreign.size() == 1);
  const ForeignNote& note = found.scan.foreign[0];
  CHECK(note.owner == "GNU");
  CHECK(note.type == 1);
  CHECK(note.offset == file.start[1]);
  CHECK(note.file_offset.value == found.offset + file.start[1]);
  CHECK(note.size == gnu.size());
  CHECK(std::ranges::equal(note.bytes, gnu));
  check_finding(found, "note-foreign", Severity::error, file.start[1],
                "owner of the note; expected \"stapsdt\", found \"GNU\"");
}

TEST_CASE("owners that are almost stapsdt") {
  File file;
  const auto [owner, shown] = GENERATE(
      std::pair<std::string, std::string>{std::string("stapsdtX", 8), "\"stapsdtX\""},
      std::pair<std::string, std::string>{std::string("stapsd\0t", 8), "\"stapsd\\x00t\""},
      std::pair<std::string, std::string>{"", "\"\""},
      std::pair<std::string, std::string>{std::string("a\n\"\xff", 5), "\"a\\x0a\\x22\\xff\""},
      std::pair<std::string, std::string>{std::string(50, 'o'),
                                          '"' + std::string(40, 'o') + "...\""});
  CAPTURE(shown);
  file.insert(file.start[1], file.elf.note(owner, 3, Bytes(40, std::byte{9})));
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  CHECK(found.scan.foreign.size() == 1);
  check_finding(found, "note-foreign", Severity::error, file.start[1],
                "owner of the note; expected \"stapsdt\", found " + shown);
}

TEST_CASE("namesz 7 and 9") {
  const std::size_t size = GENERATE(7U, 9U, 12U);
  File file;
  const Bytes desc = file.elf.stapsdt_desc({.provider = "prov", .name = "x"});
  file.insert(file.start[1], file.elf.note(std::string_view("stapsdt\0\0\0\0\0", size), 3, desc));
  const auto found = scan(file);
  CHECK(found.names() == "a x! b c ");
  check_finding(found, "note-namesz", Severity::error, file.start[1],
                "namesz of the note; expected 8, found " + std::to_string(size));
}

TEST_CASE("an empty name or provider") {
  const bool name = GENERATE(true, false);
  File file;
  file.insert(file.start[1],
              file.elf.stapsdt({.provider = name ? "prov" : "", .name = name ? "" : "x"}));
  const auto found = scan(file);
  CHECK(found.scan.notes.size() == 4);
  check_finding(
      found, "note-name", name ? Severity::error : Severity::warning, file.start[1],
      std::string(name ? "name" : "provider") + " of the probe; expected some text, found none");
}

TEST_CASE("descsz counts the padding") {
  File file;
  file.set(1, kDescsz, 40);
  const auto found = scan(file);
  CHECK(found.names() == "a b! c ");
  check_finding(found, "note-descsz", Severity::error, file.start[1],
                "descsz of the note; expected 38, found 40");
  CHECK(found.scan.findings[0].evidence[1].starts_with("it counts zero bytes"));
  CHECK(found.scan.notes[1].arguments == "8@%rax");
}

TEST_CASE("text behind the arguments' NUL") {
  File file;
  Bytes desc = file.elf.stapsdt_desc({.provider = "prov", .name = "x"});
  desc.push_back(std::byte{'z'});
  file.insert(file.start[1], file.elf.note(std::string_view("stapsdt", 8), 3, desc));
  const auto found = scan(file);
  CHECK(found.names() == "a x! b c ");
  REQUIRE(found.scan.findings.size() == 1);
  CHECK(found.scan.findings[0].rule == "note-descsz");
  CHECK(found.scan.findings[0].evidence[1].starts_with("other bytes than zero"));
}

TEST_CASE("the arguments' NUL is missing") {
  File file;
  file.set(1, kDescsz, 37);  // the NUL becomes padding
  const auto found = scan(file);
  CHECK(found.names() == "a b! c ");
  CHECK(found.scan.notes[1].arguments == "8@%rax");
  check_finding(found, "note-args-nul", Severity::error, file.start[1],
                "end of the arguments; expected a NUL in descsz 37, found none");
}

TEST_CASE("there is no room for arguments at all") {
  File file;
  file.set(1, kDescsz, 31);  // ends behind the name's NUL
  Bytes tail(file.notes.begin() + static_cast<std::ptrdiff_t>(file.start[2]), file.notes.end());
  file.notes.resize(file.start[1] + 20 + 31);
  file.notes.push_back(std::byte{0});
  file.add(tail);
  const auto found = scan(file);
  CHECK(found.names() == "a b! c ");
  CHECK(found.scan.notes[1].arguments.empty());
  check_finding(found, "note-args-nul", Severity::error, file.start[1],
                "end of the arguments; expected a NUL in descsz 31, found none");
}

TEST_CASE("a descriptor too short for a probe") {
  File file;
  file.insert(file.start[1],
              file.elf.note(std::string_view("stapsdt", 8), 3, Bytes(26, std::byte{0})));
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  CHECK(found.scan.foreign.size() == 1);
  check_finding(found, "note-short", Severity::error, file.start[1],
                "descsz of the note; expected at least 27, found 26");
}

TEST_CASE("strings without their NUL") {
  File file;
  const std::string_view text =
      GENERATE(std::string_view("providername", 12), std::string_view("provider\0name", 13));
  Bytes desc(24);
  for (const char c : text) desc.push_back(static_cast<std::byte>(c));
  file.insert(file.start[1], file.elf.note(std::string_view("stapsdt", 8), 3, desc));
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  REQUIRE(found.scan.findings.size() == 1);
  CHECK(found.scan.findings[0].rule == "note-strings");
}

TEST_CASE("addresses of the other class") {
  const bool is64 = GENERATE(false, true);
  const std::endian order = GENERATE(std::endian::little, std::endian::big);
  CAPTURE(is64, order == std::endian::big);
  File file({.is64 = is64, .order = order});
  const ElfBuilder other({.is64 = !is64, .order = order});
  file.insert(file.start[1], other.stapsdt({.location = 0x401106,
                                            .base = 0x402010,
                                            .semaphore = 0x404028,
                                            .provider = "provider",
                                            .name = "probe",
                                            .arguments = "4@%eax"}));
  const auto found = scan(file);
  CHECK(found.names() == "a b c ");
  CHECK(found.scan.foreign.size() == 1);
  check_finding(found, "note-word", Severity::error, file.start[1],
                is64 ? "addresses of the note; expected 8 bytes each, found 4"
                     : "addresses of the note; expected 4 bytes each, found 8");
}

TEST_CASE("the last note's padding is outside of the section") {
  File file;
  file.notes.resize(file.notes.size() - 2);
  const auto found = scan(file);
  CHECK(found.names() == "a b c! ");
  CHECK(found.scan.notes[2].size == 58);
  CHECK(found.scan.notes[2].bytes.size() == 58);
  check_finding(found, "note-padding", Severity::error, file.start[2],
                "padding of the last note; expected 2 more bytes in the section, found its end");
}

TEST_CASE("padding that is not zero breaks nobody") {
  File file;
  file.notes[file.start[1] + 20 + 38] = std::byte{0xcc};
  const auto found = scan(file);
  CHECK(found.names() == "a b! c ");
  check_finding(found, "note-padding", Severity::note, file.start[1],
                "padding of the note; expected zeros, found other bytes");
}

TEST_CASE("zero words between two notes") {
  const std::size_t bytes = GENERATE(4U, 8U);
  File file;
  file.insert(file.start[1], Bytes(bytes));
  const auto found = scan(file);
  CHECK(found.names() == "a! b c ");
  CHECK(found.scan.notes[0].size == file.start[1] + bytes);
  CHECK(found.scan.notes[1].offset == file.start[1] + bytes);
  CHECK(found.scan.stopped.empty());
  check_finding(found, "note-gap", Severity::error, file.start[1],
                "bytes behind the note; expected the next note, found " + std::to_string(bytes) +
                    " zero bytes");
}

TEST_CASE("zeros at the section's end") {
  File file;
  const std::size_t end = file.notes.size();
  const std::size_t bytes = GENERATE(1U, 4U, 11U);
  file.notes.resize(end + bytes);
  const auto found = scan(file);
  CHECK(found.names() == "a b c! ");
  CHECK(found.scan.stopped.empty());
  check_finding(found, "note-gap", Severity::warning, end,
                "bytes behind the note; expected the section's end, found " +
                    std::to_string(bytes) + " zero bytes");
}

TEST_CASE("a note that runs past the section's end stops the reading") {
  File file;
  const auto [field, value, sizes] = GENERATE(
      std::tuple<std::size_t, std::uint32_t, std::string>{kDescsz, 200, "namesz 0x8, descsz 0xc8"},
      std::tuple<std::size_t, std::uint32_t, std::string>{kDescsz, 0xffffffff,
                                                          "namesz 0x8, descsz 0xffffffff"},
      std::tuple<std::size_t, std::uint32_t, std::string>{kNamesz, 0xfffffffc,
                                                          "namesz 0xfffffffc, descsz 0x26"});
  CAPTURE(sizes);
  file.set(1, field, value);
  const auto found = scan(file);
  CHECK(found.names() == "a ");
  CHECK(found.scan.stopped ==
        std::vector<std::pair<std::uint32_t, std::uint64_t>>{{1, file.start[1]}});
  check_finding(found, "note-truncated", Severity::error, file.start[1],
                "note at offset 0x3c of section 1; expected a whole note before the section's "
                "end, found " +
                    sizes + " and 120 bytes");
}

TEST_CASE("a section cut at any byte keeps the notes before the cut") {
  File whole;
  const std::size_t cut = GENERATE_COPY(range(std::size_t{1}, whole.notes.size()));
  CAPTURE(cut);
  File file;
  file.notes.resize(cut);
  const auto found = scan(file);
  // A note of 60 bytes is there from its 58th on: what is missing then is padding.
  CHECK(found.scan.notes.size() == (cut + 2) / 60);
  CHECK((found.scan.findings.empty()) == (cut % 60 == 0));
}

TEST_CASE("a hostile number of faults gives a bounded number of findings") {
  File file;
  file.notes.assign(12 * 5000, std::byte{0});  // notes without owner, type and descriptor
  const auto found = scan(file);
  CHECK(found.scan.foreign.size() == 5000);
  REQUIRE(found.scan.findings.size() == 1001);
  CHECK(found.scan.findings[1000].message ==
        "4000 more findings of this rule; expected none, found 5000 in all");
}

TEST_CASE("every rule is described once") {
  for (const NoteRule& rule : note_rules()) {
    CAPTURE(rule.name);
    CHECK(rule.name.starts_with("note-"));
    CHECK_FALSE(rule.what.empty());
    CHECK_FALSE(rule.breaks.empty());
    CHECK_FALSE(rule.hint.empty());
    CHECK(std::ranges::count(note_rules(), rule.name, &NoteRule::name) == 1);
  }
}
