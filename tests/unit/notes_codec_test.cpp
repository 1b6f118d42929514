// The stapsdt codec over the matrix class x byte order x alignment: bytes of hand-assembled notes
// (sys/sdt.h 4.8, _SDT_ASM_BODY), and round trips.
#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

const NoteFields kProbe{VirtAddr{0x11223344}, VirtAddr{0x2004}, VirtAddr{0x4010}, "prov", "probe",
                        "-4@%eax 8@$7"};

// The note of kProbe, byte by byte.
Bytes golden(bool is64, std::endian order) {
  Bytes note;
  const auto word = [&](std::initializer_list<int> little, unsigned width) {
    Bytes bytes = bytes_of(little);
    bytes.resize(width);
    if (order == std::endian::big) std::reverse(bytes.begin(), bytes.end());
    note.insert(note.end(), bytes.begin(), bytes.end());
  };
  const unsigned w = is64 ? 8 : 4;
  word({8}, 4);                   // namesz
  word({is64 ? 0x30 : 0x24}, 4);  // descsz: 3 words, "prov", "probe", 12 of arguments, 3 NULs
  word({3}, 4);                   // type
  for (const char c : std::string("stapsdt") + '\0') note.push_back(static_cast<std::byte>(c));
  word({0x44, 0x33, 0x22, 0x11}, w);  // location
  word({0x04, 0x20}, w);              // base
  word({0x10, 0x40}, w);              // semaphore
  for (const char c : std::string("prov\0probe\0-4@%eax 8@$7\0", 24))
    note.push_back(static_cast<std::byte>(c));
  return note;  // 20 + 48 or 36: a multiple of 4
}

struct Scanned {
  std::shared_ptr<const ByteSource> source;  // keeps the views of the scan
  NoteScan scan;
};

Scanned scan(Bytes file) {
  Scanned result{memory_source(std::move(file)), {}};
  const auto elf = ElfFile::open(result.source);
  REQUIRE(elf);
  result.scan = scan_notes(*elf);
  return result;
}

void check_equal(const NoteFields& a, const NoteFields& b) {
  CHECK(a.location == b.location);
  CHECK(a.base == b.base);
  CHECK(a.semaphore == b.semaphore);
  CHECK(a.provider == b.provider);
  CHECK(a.name == b.name);
  CHECK(a.arguments == b.arguments);
}

}  // namespace

TEST_CASE("encode_note gives the bytes of the specification") {
  const bool is64 = GENERATE(false, true);
  const std::endian order = GENERATE(std::endian::little, std::endian::big);
  CAPTURE(is64, order == std::endian::big);
  const auto bytes = encode_note(kProbe, is64, order);
  REQUIRE(bytes);
  CHECK(*bytes == golden(is64, order));
}

TEST_CASE("encode_note refuses what the class cannot hold") {
  NoteFields fields = kProbe;
  fields.semaphore = VirtAddr{0x100000000};
  CHECK(encode_note(fields, true, std::endian::little));
  const auto wide = encode_note(fields, false, std::endian::little);
  REQUIRE_FALSE(wide);
  CHECK(wide.error().code == ErrorCode::refused);
  CHECK(wide.error().message == "semaphore of a note; expected 32 bits, found 0x100000000");
  fields = kProbe;
  fields.name = std::string("a\0b", 3);
  CHECK_FALSE(encode_note(fields, true, std::endian::little));
}

TEST_CASE("notes of every class, order and alignment are read") {
  const bool is64 = GENERATE(false, true);
  const std::endian order = GENERATE(std::endian::little, std::endian::big);
  const std::size_t layout = GENERATE(4U, 8U);
  const std::size_t addralign = GENERATE(0U, 1U, 2U, 4U, 8U, 16U);
  CAPTURE(is64, order == std::endian::big, layout, addralign);
  ElfBuilder elf({.is64 = is64, .order = order});
  // Lengths of the strings that end at each distance from the alignment.
  std::vector<NewProbe> probes;
  for (std::size_t i = 0; i < 9; ++i) {
    probes.push_back({.location = 0x1000 + i,
                      .base = 0x2000,
                      .semaphore = i * 2,
                      .provider = "p",
                      .name = std::string(i + 1, 'n'),
                      .arguments = i == 4 ? "" : "8@%rax"});
  }
  Bytes notes;
  std::vector<std::uint64_t> starts;
  for (const NewProbe& probe : probes) {
    starts.push_back(notes.size());
    const Bytes note = elf.stapsdt(probe, layout);
    notes.insert(notes.end(), note.begin(), note.end());
  }
  const auto section =
      elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = addralign, .bytes = notes});
  const auto [source, found] = scan(elf.build());

  REQUIRE(found.notes.size() == probes.size());
  CHECK(found.foreign.empty());
  CHECK(found.stopped.empty());
  for (std::size_t i = 0; i < probes.size(); ++i) {
    CAPTURE(i);
    const Note& note = found.notes[i];
    CHECK(note.location.value == probes[i].location);
    CHECK(note.base.value == 0x2000);
    CHECK(note.semaphore.value == probes[i].semaphore);
    CHECK(note.provider == "p");
    CHECK(note.name == probes[i].name);
    CHECK(note.arguments == probes[i].arguments);
    CHECK(note.section == section);
    CHECK(note.offset == starts[i]);
    CHECK(note.file_offset.value == elf.offset(section) + starts[i]);
    CHECK(note.size == (i + 1 < starts.size() ? starts[i + 1] : notes.size()) - starts[i]);
    CHECK(std::ranges::equal(note.bytes, std::span(notes).subspan(starts[i], note.size)));
    CHECK(note.canonical == (layout == 4));
    const auto again = encode_note(note, is64, order);
    REQUIRE(again);
    CHECK(std::ranges::equal(*again, note.bytes) == note.canonical);
  }
  // The one finding is the alignment's; where readers pad as the notes are padded, a warning.
  const bool right = layout == 4 && addralign == 4;
  REQUIRE(found.findings.size() == (right ? 0 : 1));
  if (right) return;
  CHECK(found.findings[0].rule == "note-align");
  CHECK(found.findings[0].message ==
        "sh_addralign of section 1; expected 4, found " + std::to_string(addralign));
  const bool readers_agree = addralign <= 8 && (addralign == 8) == (layout == 8);
  CHECK(found.findings[0].severity == (readers_agree ? Severity::warning : Severity::error));
}

TEST_CASE("decode(encode(x)) is x") {
  const bool is64 = GENERATE(false, true);
  const std::endian order = GENERATE(std::endian::little, std::endian::big);
  CAPTURE(is64, order == std::endian::big);
  const std::uint64_t top = is64 ? ~std::uint64_t{0} : 0xffffffff;
  std::vector<NoteFields> wanted{
      kProbe,
      {VirtAddr{0}, VirtAddr{0}, VirtAddr{0}, "p", "n", ""},
      {VirtAddr{top}, VirtAddr{top - 1}, VirtAddr{top - 2}, "p", "n", "8@x"},
      {VirtAddr{1}, VirtAddr{2}, VirtAddr{3}, std::string(300, 'p'), std::string(3000, 'n'),
       std::string(70000, 'a')},
      {VirtAddr{1}, VirtAddr{2}, VirtAddr{4}, "\xc3\xa4\x01", "with blank", "-4@[sp, 8]"}};
  ElfBuilder elf({.is64 = is64, .order = order});
  Bytes notes;
  for (const NoteFields& fields : wanted) {
    const auto bytes = encode_note(fields, is64, order);
    REQUIRE(bytes);
    notes.insert(notes.end(), bytes->begin(), bytes->end());
  }
  elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = notes});
  const auto [source, found] = scan(elf.build());
  CHECK(found.findings.empty());
  REQUIRE(found.notes.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(i);
    check_equal(found.notes[i], wanted[i]);
    CHECK(found.notes[i].canonical);
  }
}

TEST_CASE("a file without note sections, or with an empty one, has no notes and no findings") {
  ElfBuilder elf;
  if (GENERATE(false, true)) elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4});
  const auto [source, found] = scan(elf.build());
  CHECK(found.notes.empty());
  CHECK(found.findings.empty());
  CHECK(found.stopped.empty());
}
