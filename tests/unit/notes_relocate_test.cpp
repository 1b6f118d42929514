// Note sections of object files: relocations applied as the machines' supplements say.
#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

struct Word {
  std::string name;
  ElfBuilder::Kind kind;
  std::uint32_t type;
  bool rela;
};

ElfBuilder::Kind object(bool is64, std::endian order, std::uint16_t machine) {
  return {.is64 = is64, .order = order, .type = ET_REL, .machine = machine};
}

constexpr auto kLittle = std::endian::little;
constexpr auto kBig = std::endian::big;

// Type numbers: the processor supplements, as binutils' readelf -r names them.
const std::vector<Word> kWords{
    {"R_386_32", object(false, kLittle, EM_386), 1, false},
    {"R_X86_64_64", object(true, kLittle, EM_X86_64), 1, true},
    {"R_X86_64_32", object(false, kLittle, EM_X86_64), 10, true},
    {"R_X86_64_32S", object(false, kLittle, EM_X86_64), 11, true},
    {"R_AARCH64_ABS64", object(true, kLittle, EM_AARCH64), 257, true},
    {"R_ARM_ABS32", object(false, kLittle, EM_ARM), 2, false},
    {"R_PPC64_ADDR64", object(true, kLittle, EM_PPC64), 38, true},
    {"R_PPC64_ADDR64, big", object(true, kBig, EM_PPC64), 38, true},
    {"R_PPC64_UADDR64", object(true, kLittle, EM_PPC64), 43, true},
    {"R_390_64", object(true, kBig, EM_S390), 22, true},
    {"R_390_32", object(false, kBig, EM_S390), 4, true},
    {"R_RISCV_64", object(true, kLittle, EM_RISCV), 2, true},
    {"R_RISCV_32", object(false, kLittle, EM_RISCV), 1, true},
};

// An object with .text, .data, and one note whose fields are what the relocations make of them.
struct Object {
  explicit Object(const Word& w) : word(w), elf(w.kind) {
    text = elf.section({.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .bytes = Bytes(64)});
    data = elf.section({.name = ".probes", .flags = SHF_ALLOC | SHF_WRITE, .bytes = Bytes(64)});
    base = elf.section({.name = ".stapsdt.base", .flags = SHF_ALLOC, .bytes = Bytes(1)});
  }

  // A relocation of field 0 (location), 1 (base) or 2 (semaphore) of note `note`.
  void relocate(unsigned field, std::uint32_t symbol, std::int64_t addend, std::size_t note = 0,
                std::optional<std::uint32_t> type = std::nullopt) {
    const std::size_t at = starts.at(note) + 20 + field * elf.word();
    if (!word.rela) {
      put(notes, {at, elf.word()}, word.kind.order, static_cast<std::uint64_t>(addend));
    }
    const Bytes entry = elf.relocation(at, symbol, type.value_or(word.type),
                                       word.rela ? std::optional(addend) : std::nullopt);
    entries.push_back(entry);
  }
  std::size_t note(const std::string& name) {
    starts.push_back(notes.size());
    const Bytes bytes = elf.stapsdt({.provider = "p", .name = name, .arguments = "4@x"});
    notes.insert(notes.end(), bytes.begin(), bytes.end());
    return starts.size() - 1;
  }
  const NoteScan& scan() {
    const auto section =
        elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = notes});
    Bytes table;
    for (const Bytes& entry : entries) table.insert(table.end(), entry.begin(), entry.end());
    elf.section({.name = word.rela ? ".rela.note.stapsdt" : ".rel.note.stapsdt",
                 .type = word.rela ? SHT_RELA : SHT_REL,
                 .align = 8,
                 .bytes = table,
                 .link = ElfBuilder::kSymtab,
                 .info = section,
                 .entsize = entries.empty() ? elf.word() * 3 : entries[0].size()});
    source = memory_source(elf.build());
    const auto file = ElfFile::open(source);
    REQUIRE(file);
    result = scan_notes(*file);
    return result;
  }

  Word word;
  ElfBuilder elf;
  std::uint32_t text{}, data{}, base{};
  Bytes notes{};
  std::vector<std::size_t> starts{};
  std::vector<Bytes> entries{};
  std::shared_ptr<const ByteSource> source{};
  NoteScan result{};
};

}  // namespace

TEST_CASE("absolute words of every machine are applied") {
  const Word word = GENERATE(from_range(kWords));
  CAPTURE(word.name);
  Object object(word);
  const auto text =
      object.elf.symbol({.type = STT_SECTION, .binding = STB_LOCAL, .shndx = object.text});
  const auto semaphore = object.elf.symbol(
      {.name = "p_n_semaphore", .value = 6, .type = STT_OBJECT, .shndx = object.data});
  const auto base = object.elf.symbol({.name = "_.stapsdt.base", .shndx = object.base});
  object.note("n");
  object.relocate(2, semaphore, 0);
  object.relocate(0, text, 0x1f);
  object.relocate(1, base, 0);
  const NoteScan& found = object.scan();
  CHECK(found.findings.empty());
  REQUIRE(found.notes.size() == 1);
  const Note& note = found.notes[0];
  CHECK(note.location.value == 0x1f);
  CHECK(note.location_section == object.text);
  CHECK_FALSE(note.location_unresolved);
  CHECK(note.base.value == 0);
  CHECK(note.semaphore.value == 6);
  CHECK(note.semaphore_section == object.data);
  CHECK(note.canonical);
  CHECK(note.bytes.size() == note.size);
}

TEST_CASE("a symbol's value and a negative addend are added") {
  const Word word = GENERATE(from_range(kWords));
  CAPTURE(word.name);
  Object object(word);
  const auto label = object.elf.symbol({.name = "f", .value = 0x20, .shndx = object.text});
  object.note("n");
  object.relocate(0, label, -4);
  const NoteScan& found = object.scan();
  REQUIRE(found.notes.size() == 1);
  CHECK(found.notes[0].location.value == 0x1c);
  CHECK(found.notes[0].location_section == object.text);
}

TEST_CASE("a note without a relocation keeps its fields") {
  Object object(kWords[1]);
  object.elf.symbol({.name = "f", .shndx = object.text});
  object.note("n");
  const NoteScan& found = object.scan();
  REQUIRE(found.notes.size() == 1);
  CHECK(found.notes[0].location.value == 0);
  CHECK(found.notes[0].location_section == 0);
  CHECK_FALSE(found.notes[0].location_unresolved);
}

TEST_CASE("locations that name no defined section are unresolved") {
  const std::string kind = GENERATE("none", "undefined", "symbol 0", "beyond the table",
                                    "beyond the sections", "common");
  CAPTURE(kind);
  Object object(kWords[1]);
  const auto good = object.elf.symbol({.name = "f", .value = 8, .shndx = object.text});
  const auto undefined = object.elf.symbol({.name = "gone"});
  const auto wild = object.elf.symbol({.name = "wild", .shndx = 0x300});
  const auto common = object.elf.symbol({.name = "c", .value = 2, .shndx = SHN_COMMON});
  object.note("n");
  object.note("live");
  if (kind == "none") object.relocate(0, good, 4, 0, 0U);
  if (kind == "undefined") object.relocate(0, undefined, 4);
  if (kind == "symbol 0") object.relocate(0, 0, 4);
  if (kind == "beyond the table") object.relocate(0, 1000, 4);
  if (kind == "beyond the sections") object.relocate(0, wild, 4);
  if (kind == "common") object.relocate(0, common, 4);
  object.relocate(0, good, 4, 1);
  const NoteScan& found = object.scan();
  REQUIRE(found.notes.size() == 2);
  CHECK(found.notes[0].location_unresolved);
  CHECK(found.notes[0].location_section == 0);
  CHECK(found.notes[0].location.value == (kind == "none" ? 0 : 4));
  CHECK_FALSE(found.notes[1].location_unresolved);
  CHECK(found.notes[1].location.value == 12);
}

TEST_CASE("an absolute symbol resolves without a section") {
  Object object(kWords[1]);
  const auto absolute = object.elf.symbol({.name = "a", .value = 0x1000, .shndx = SHN_ABS});
  object.note("n");
  object.relocate(0, absolute, 4);
  const NoteScan& found = object.scan();
  REQUIRE(found.notes.size() == 1);
  CHECK(found.notes[0].location.value == 0x1004);
  CHECK(found.notes[0].location_section == 0);
  CHECK_FALSE(found.notes[0].location_unresolved);
}

TEST_CASE("a relocation that is no absolute word is reported") {
  const std::uint32_t type = GENERATE(2U, 9U, 0xffffU);  // R_X86_64_PC32, _GOTPCREL, none known
  CAPTURE(type);
  Object object(kWords[1]);
  const auto label = object.elf.symbol({.name = "f", .value = 8, .shndx = object.text});
  object.note("n");
  object.relocate(0, label, 0, 0, type);
  const NoteScan& found = object.scan();
  REQUIRE(found.notes.size() == 1);
  CHECK(found.notes[0].location_unresolved);
  REQUIRE(found.findings.size() == 1);
  CHECK(found.findings[0].rule == "note-reloc");
  CHECK(found.findings[0].name == "n");
  CHECK_FALSE(found.findings[0].site);
  CHECK(found.findings[0].message ==
        "relocation of the note; expected an absolute word of x86_64, found type " +
            std::to_string(type));
}

TEST_CASE("riscv objects of clang leave the sizes to relocations") {
  // clang 19 -target riscv64: namesz and descsz are zero, with R_RISCV_ADD32 (35) of the end and
  // R_RISCV_SUB32 (39) of the start.
  Object object(kWords[11]);
  REQUIRE(object.word.name == "R_RISCV_64");
  const auto label = object.elf.symbol({.name = "f", .value = 2, .shndx = object.text});
  for (const char* name : {"first", "second"}) object.note(name);
  std::vector<Bytes> sizes;
  for (const std::size_t start : object.starts) {
    for (const std::size_t field : {0U, 4U}) {
      const auto size = get(object.notes, {start + field, 4}, kLittle);
      put(object.notes, {start + field, 4}, kLittle, 0);
      const auto end = object.elf.symbol({.value = 100 + size, .shndx = 4});
      const auto begin = object.elf.symbol({.value = 90, .shndx = 4});
      sizes.push_back(object.elf.relocation(start + field, end, 35, 0));
      sizes.push_back(object.elf.relocation(start + field, begin, 39, 10));
    }
  }
  object.relocate(0, label, 0, 0);
  object.relocate(0, label, 2, 1);
  object.entries.insert(object.entries.end(), sizes.begin(), sizes.end());
  const NoteScan& found = object.scan();
  CHECK(found.findings.empty());
  REQUIRE(found.notes.size() == 2);
  CHECK(found.notes[0].name == "first");
  CHECK(found.notes[1].name == "second");
  CHECK(found.notes[1].location.value == 4);
  CHECK(found.notes[1].location_section == object.text);
  // The bytes are the file's.
  CHECK(
      std::ranges::equal(found.notes[1].bytes, std::span(object.notes).subspan(object.starts[1])));
}

TEST_CASE("relocations of a linked file are not applied again") {
  // ld --emit-relocs keeps .rela.note.stapsdt; the values stand in place.
  Word word = kWords[1];
  word.kind.type = ET_EXEC;
  Object object(word);
  const auto label = object.elf.symbol({.name = "f", .value = 8, .shndx = object.text});
  object.note("n");
  object.relocate(0, label, 4);
  put(object.notes, {20, 8}, kLittle, 0x401234);
  const NoteScan& found = object.scan();
  REQUIRE(found.notes.size() == 1);
  CHECK(found.notes[0].location.value == 0x401234);
  CHECK(found.notes[0].location_section == 0);
}

TEST_CASE("relocation tables that cost more than the file are not read") {
  // 1,000 note sections, each with a header for the same large relocation table.
  constexpr int kSections = 1000;
  ElfBuilder elf({.type = ET_REL});
  const auto text = elf.section({.name = ".text", .flags = SHF_ALLOC, .bytes = Bytes(64)});
  const auto symbol = elf.symbol({.name = "f", .value = 8, .shndx = text});
  Bytes table;
  for (int i = 0; i < 10000; ++i) {
    const Bytes entry = elf.relocation(20, symbol, 1, 0);
    table.insert(table.end(), entry.begin(), entry.end());
  }
  std::vector<std::uint32_t> headers;
  for (int i = 0; i < kSections; ++i) {
    const auto note = elf.section({.name = ".note.stapsdt",
                                   .type = SHT_NOTE,
                                   .align = 4,
                                   .bytes = elf.stapsdt({.provider = "p", .name = "n"})});
    headers.push_back(elf.section({.name = ".rela",
                                   .type = SHT_RELA,
                                   .align = 8,
                                   .bytes = i == 0 ? table : Bytes(),
                                   .link = ElfBuilder::kSymtab,
                                   .info = note,
                                   .entsize = 24}));
  }
  Bytes bytes = elf.build();
  for (const auto header : headers) {
    elf.poke(bytes, elf.shdr(header, "sh_offset"), elf.offset(headers[0]));
    elf.poke(bytes, elf.shdr(header, "sh_size"), table.size());
  }
  const auto source = memory_source(bytes);
  const auto file = ElfFile::open(source);
  REQUIRE(file);
  const NoteScan found = scan_notes(*file);
  REQUIRE(found.notes.size() == kSections);
  CHECK(found.notes[0].location_section == text);
  CHECK(found.notes[kSections - 1].location_section == 0);
  CHECK(found.findings.size() > kSections / 2);
  CHECK(found.findings.back().rule == "note-reloc");
}
