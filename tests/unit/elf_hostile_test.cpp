// One field of a sound file is wrong, or the file ends early: the message is exact, and the rest
// is still read. Then random damage: no signal, no endless work.
#include <random>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/elf/file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

// ELF64, little-endian, one PT_LOAD; sections: null, .text, .note.x, .rela.x, .symtab, .strtab,
// .shstrtab.
struct Golden {
  ElfBuilder elf;
  std::uint32_t text{}, note{}, rela{};
  Bytes bytes;

  explicit Golden(ElfBuilder::Kind kind = {}) : elf(kind) {
    text = elf.section({.name = ".text",
                        .flags = SHF_ALLOC | SHF_EXECINSTR,
                        .addr = 0x1000,
                        .bytes = bytes_of({0x90, 0xc3})});
    note = elf.section({.name = ".note.x",
                        .type = SHT_NOTE,
                        .bytes = elf.note(std::string_view("GNU", 4), 3, Bytes(8))});
    rela = elf.section({.name = ".rela.x",
                        .type = SHT_RELA,
                        .bytes = elf.relocation(1, 1, 1, 1),
                        .link = ElfBuilder::kSymtab,
                        .entsize = 3u * elf.word()});
    elf.load(PF_R | PF_X, text);
    elf.symbol({.name = "f", .value = 0x1000, .size = 2, .type = STT_FUNC, .shndx = text});
    bytes = elf.build();
  }

  std::string size() const { return fmt_hex(bytes.size()); }
  static std::string fmt_hex(std::uint64_t value) {
    char text[20];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
  }
};

// The error, or else the problems, one line each.
std::string said(const Bytes& bytes) {
  const auto file = ElfFile::open(memory_source(bytes));
  if (!file) return "error " + file.error().where + ": " + file.error().message;
  std::string text;
  for (const ReadProblem& p : file->problems())
    text += (text.empty() ? "" : "\n") + p.where + ": " + p.message;
  return text;
}

// Asks everything the reader can answer; gives the number of answers, so that none is left out.
std::size_t exercise(const Bytes& bytes) {
  const auto file = ElfFile::open(borrowed_source(bytes));
  if (!file) return file.error().message.size();
  std::size_t answers = file->problems().size() + file->build_id().size();
  for (const Section& s : file->sections()) {
    answers += file->contents(s).has_value();
    answers += file->section_containing(s.addr) != nullptr;
    answers += file->bytes_at(s.addr, {16}).size() + file->bytes_at({1}, {16}, s.index).size();
    if (const auto symbols = file->symbols(s))
      for (const Symbol& symbol : *symbols) answers += symbol.name.size();
    if (const auto relocations = file->relocations(s)) answers += relocations->size();
  }
  for (const Segment& s : file->segments()) {
    answers += file->offset_of(s.vaddr).has_value();
    answers += file->load_segment({s.vaddr.value + s.memsz.value / 2}) != nullptr;
  }
  return answers;
}

}  // namespace

TEST_CASE("What is not ELF is told in one line") {
  CHECK(said({}) == "error : the file is empty; expected an ELF header, found 0 bytes");
  CHECK(said(bytes_of("#!/bin/sh\n")) ==
        "error : not an ELF file; expected the bytes 7f 45 4c 46, found 23 21 2f 62");
  CHECK(said(bytes_of("\177E")) ==
        "error : not an ELF file; expected the bytes 7f 45 4c 46, found 7f 45");
  Golden golden;
  const auto ident = [&](std::size_t at, int value) {
    Bytes bytes = golden.bytes;
    bytes[at] = static_cast<std::byte>(value);
    return said(bytes);
  };
  CHECK(ident(4, 0) == "error EI_CLASS: unknown class; expected 1 (32-bit) or 2 (64-bit), found 0");
  CHECK(ident(4, 3) == "error EI_CLASS: unknown class; expected 1 (32-bit) or 2 (64-bit), found 3");
  CHECK(ident(5, 0) ==
        "error EI_DATA: unknown byte order; expected 1 (little) or 2 (big), found 0");
  CHECK(ident(6, 2) == "error EI_VERSION: unknown ELF version; expected 1, found 2");

  const auto error = ElfFile::open(memory_source(bytes_of("text"))).error();
  CHECK(error.code == ErrorCode::not_elf);
}

TEST_CASE("One wrong field of a header gives its message") {
  const Golden g;
  const auto poked = [&](Field field, std::uint64_t value) {
    Bytes bytes = g.bytes;
    g.elf.poke(bytes, field, value);
    return said(bytes);
  };
  const auto ehdr = [&](const char* name, std::uint64_t value) {
    return poked(g.elf.ehdr(name), value);
  };
  const auto text = [&](const char* name, std::uint64_t value) {
    return poked(g.elf.shdr(g.text, name), value);
  };
  REQUIRE(said(g.bytes).empty());

  // Program headers: without them nothing can be told, so these are errors.
  CHECK(ehdr("e_phoff", 0) ==
        "error e_phoff: no program header table; expected the offset of 1 entries, found 0");
  CHECK(ehdr("e_phoff", 0x100000) ==
        "error e_phoff: program header table lies outside the file; expected at least 0x100038 "
        "bytes, found " +
            g.size());
  CHECK(ehdr("e_phoff", ~std::uint64_t{0}) ==
        "error e_phoff: program header table lies outside the file; expected more than 2^64 "
        "bytes, found " +
            g.size());
  CHECK(ehdr("e_phentsize", 55) ==
        "error e_phentsize: program headers are too small; expected at least 56 bytes, found 55");
  CHECK(ehdr("e_phnum", 0x7fff) ==
        "error e_phoff: program header table lies outside the file; expected at least 0x1c0008 "
        "bytes, found " +
            g.size());
  // PN_XNUM, and section 0 has no count.
  CHECK(ehdr("e_phnum", PN_XNUM) ==
        "error e_phoff: program header table lies outside the file; expected at least 0x380008 "
        "bytes, found " +
            g.size());
  CHECK(ehdr("e_phnum", 0).empty());

  // Section headers: the file is read without them.
  CHECK(ehdr("e_shoff", 0) ==
        "e_shoff: no section header table; expected the offset of 7 entries, found 0");
  CHECK(ehdr("e_shoff", 0x100000) ==
        "e_shoff: section header table lies outside the file; expected at least 0x1001c0 bytes, "
        "found " +
            g.size());
  CHECK(ehdr("e_shnum", 8) ==
        "e_shoff: section header table lies outside the file; expected at least " +
            Golden::fmt_hex(g.bytes.size() + 64) + " bytes, found " + g.size());
  CHECK(ehdr("e_shentsize", 63) ==
        "e_shentsize: section headers are too small; expected at least 64 bytes, found 63");
  CHECK(ehdr("e_shentsize", 0) ==
        "e_shentsize: section headers are too small; expected at least 64 bytes, found 0");
  CHECK(ehdr("e_shnum", 0) ==
        "e_shnum: no count of sections; expected it in section header 0, found none there");
  CHECK(ehdr("e_shstrndx", 0) ==
        "e_shstrndx: no section names; expected a section from 1 to 6, found 0");
  CHECK(ehdr("e_shstrndx", 7) ==
        "e_shstrndx: no section names; expected a section from 1 to 6, found 7");

  CHECK(text("sh_name", 0x1000) ==
        "section 1: name is not in the string table; expected a string before 0x31, found "
        "sh_name 0x1000");
  CHECK(text("sh_offset", 0x100000) ==
        "section 1: contents lie outside the file; expected an end up to " + g.size() +
            ", found 0x100000+0x2");
  CHECK(text("sh_size", ~std::uint64_t{0}) ==
        "section 1: contents lie outside the file; expected an end up to " + g.size() +
            ", found 0x1000+0xffffffffffffffff");
  CHECK(poked(g.elf.phdr(0, "p_offset"), 0x100000) ==
        "program header 0: contents lie outside the file; expected an end up to " + g.size() +
            ", found 0x100000+0x2");
}

TEST_CASE("Header fields that say nothing about the layout are not judged") {
  const Golden g;
  for (const char* name : {"e_version", "e_flags", "e_ehsize", "e_entry", "e_type", "e_machine"}) {
    Bytes bytes = g.bytes;
    g.elf.poke(bytes, g.elf.ehdr(name), 0xffff);
    CAPTURE(name);
    CHECK(said(bytes).empty());
  }
}

TEST_CASE("A section outside the file is marked, and the others are read") {
  const Golden g;
  Bytes bytes = g.bytes;
  g.elf.poke(bytes, g.elf.shdr(g.note, "sh_offset"), bytes.size() - 1);
  const auto file = ElfFile::open(memory_source(bytes));
  REQUIRE(file);
  const Section& note = *file->section(".note.x");
  CHECK(!note.in_file);
  const auto contents = file->contents(note);
  REQUIRE(!contents);
  CHECK(contents.error().code == ErrorCode::unreadable);
  CHECK(contents.error().where == "section 2 .note.x");
  CHECK(file->section(".text")->in_file);
  CHECK(file->contents(*file->section(".text")).value().size() == 2);
}

TEST_CASE("Extended counts that section 0 does not back") {
  const Golden g({.extended_numbering = true});
  REQUIRE(said(g.bytes).empty());
  const auto section0 = [&](const char* name, std::uint64_t value) {
    Bytes bytes = g.bytes;
    g.elf.poke(bytes, g.elf.shdr(0, name), value);
    return said(bytes);
  };
  CHECK(section0("sh_size", 0) ==
        "e_shnum: no count of sections; expected it in section header 0, found none there");
  CHECK(section0("sh_size", ~std::uint64_t{0}) ==
        "e_shoff: too many entries in the section header table; expected at most 4194304, found "
        "18446744073709551615");
  // Section 0 has no contents: its size is a count.
  CHECK(section0("sh_offset", 0x100000).empty());
  CHECK(section0("sh_link", 99) ==
        "e_shstrndx: no section names; expected a section from 1 to 6, found 99");
  CHECK(section0("sh_info", 0) ==
        "error e_phoff: program header table lies outside the file; expected at least 0x380008 "
        "bytes, found " +
            g.size());
  CHECK(section0("sh_info", 0xffffffff) ==
        "error e_phoff: too many entries in the program header table; expected at most 4194304, "
        "found 4294967295");
}

TEST_CASE("Tables with impossible entries are errors of that table only") {
  const Golden g;
  const auto opened = [&](Field field, std::uint64_t value) {
    Bytes bytes = g.bytes;
    g.elf.poke(bytes, field, value);
    auto file = ElfFile::open(memory_source(bytes));
    REQUIRE(file);
    return *std::move(file);
  };
  const std::uint32_t symtab = g.elf.symtab();
  {
    const ElfFile file = opened(g.elf.shdr(symtab, "sh_entsize"), 23);
    const auto symbols = file.symbols(file.sections()[symtab]);
    REQUIRE(!symbols);
    CHECK(symbols.error().code == ErrorCode::malformed);
    CHECK(symbols.error().where == "section 4 .symtab");
    CHECK(symbols.error().message == "sh_entsize is too small; expected at least 24, found 23");
  }
  {
    const ElfFile file = opened(g.elf.shdr(symtab, "sh_entsize"), 0);  // not stated
    CHECK(file.symbols(file.sections()[symtab]).value().size() == 2);
  }
  {
    const ElfFile file = opened(g.elf.shdr(symtab, "sh_entsize"), ~std::uint64_t{0});
    CHECK(file.symbols(file.sections()[symtab]).value().empty());
  }
  {
    const ElfFile file = opened(g.elf.shdr(symtab, "sh_size"), 47);  // the rest is no entry
    CHECK(file.symbols(file.sections()[symtab]).value().size() == 1);
  }
  for (const std::uint64_t link : {0u, 1u, 99u, 0xffffffffu}) {
    const ElfFile file = opened(g.elf.shdr(symtab, "sh_link"), link);
    const auto symbols = file.symbols(file.sections()[symtab]);
    REQUIRE(symbols);
    CHECK((*symbols)[1].name.empty());
    CHECK((*symbols)[1].value.value == 0x1000);
  }
  {
    const ElfFile file = opened(g.elf.sym(1, "st_name"), 0xffffffff);
    CHECK(file.symbols(file.sections()[symtab]).value()[1].name.empty());
  }
  {
    const ElfFile file = opened(g.elf.shdr(g.rela, "sh_entsize"), 23);
    const auto relocations = file.relocations(file.sections()[g.rela]);
    REQUIRE(!relocations);
    CHECK(relocations.error().message == "sh_entsize is too small; expected at least 24, found 23");
  }
  const ElfFile file = opened(g.elf.ehdr("e_flags"), 0);
  const auto wrong = file.symbols(*file.section(".text"));
  REQUIRE(!wrong);
  CHECK(wrong.error().where == "section 1 .text");
  CHECK(wrong.error().message == "not a symbol table; expected sh_type 2 or 11, found 1");
  const auto wrong_too = file.relocations(*file.section(".text"));
  REQUIRE(!wrong_too);
  CHECK(wrong_too.error().message == "not a relocation table; expected sh_type 4 or 9, found 1");
}

TEST_CASE("A file cut anywhere is an error or is read as far as it goes") {
  const Golden g({.is64 = GENERATE(true, false)});
  const std::size_t header = g.elf.ehdr_size(), segments = header + g.elf.phdr_stride();
  for (std::size_t size = 0; size < g.bytes.size(); ++size) {
    const Bytes cut(g.bytes.begin(), g.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    const auto file = ElfFile::open(memory_source(cut));
    CAPTURE(size);
    REQUIRE(file.has_value() == (size >= segments));
    if (!file) {
      CHECK(file.error().code == (size < 4 ? ErrorCode::not_elf : ErrorCode::unreadable));
      CHECK(!file.error().message.empty());
    } else {
      // The section header table stands at the end.
      CHECK(file->sections().empty());
      CHECK(file->segments().size() == 1);
      CHECK(!file->problems().empty());
    }
    exercise(cut);
  }
  const Bytes cut(g.bytes.begin(), g.bytes.begin() + 20);
  CHECK(said(cut) ==
        "error : ELF header is cut short; expected " + std::to_string(header) + " bytes, found 20");
  CHECK(said(bytes_of("\177ELF")) == "error : ELF header is cut short; expected 16 bytes, found 4");
}

TEST_CASE("Random damage ends in answers or errors") {
  const bool is64 = GENERATE(true, false);
  const auto order = GENERATE(std::endian::little, std::endian::big);
  const Golden g({.is64 = is64, .order = order, .extended_numbering = GENERATE(false, true)});
  std::mt19937 random(7);  // fixed: a failure can be repeated
  // Damage where it counts: the ELF header and the tables, not the padding between them.
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < g.bytes.size(); ++i)
    if (i < 0x100 || i > 0x1000) places.push_back(i);
  std::size_t answers = 0;
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes = g.bytes;
    for (int flips = 1 + round % 4; flips > 0; --flips)
      bytes[places[random() % places.size()]] ^= static_cast<std::byte>(1u << random() % 8);
    answers += exercise(bytes);
  }
  CHECK(answers > 3000);
}
