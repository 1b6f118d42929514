// What the reader gives for sound files of every class, byte order and type, compared with what
// the builder was told to write.
#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/elf/file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

struct Shape {
  bool is64;
  std::endian order;
};

Shape any_shape() {
  const bool is64 = GENERATE(true, false);
  const bool little = GENERATE(true, false);
  CAPTURE(is64, little);
  return {is64, little ? std::endian::little : std::endian::big};
}

ElfFile open_ok(const Bytes& bytes) {
  auto file = ElfFile::open(memory_source(bytes));
  if (!file) FAIL(file.error().where << ": " << file.error().message);
  return *std::move(file);
}

}  // namespace

TEST_CASE("Headers, segments and sections in each class, order, type, stride and numbering") {
  const auto [is64, order] = any_shape();
  const std::uint16_t type = GENERATE(ET_REL, ET_EXEC, ET_DYN, ET_CORE);
  const bool extended = GENERATE(false, true);
  const std::uint16_t extra_stride = GENERATE(std::uint16_t{0}, std::uint16_t{8});
  CAPTURE(type, extended, extra_stride);

  // Values that fill the class's width show a field read at the wrong place or width.
  const std::uint64_t high = is64 ? 0x1122334400000000 : 0x11220000;
  ElfBuilder elf({.is64 = is64,
                  .order = order,
                  .type = type,
                  .machine = EM_S390,
                  .entry = high + 0x1004,
                  .extended_numbering = extended,
                  .extra_stride = extra_stride});
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = high + 0x1000,
                                 .align = 16,
                                 .bytes = bytes_of({1, 2, 3, 4, 5})});
  const auto bss = elf.section({.name = ".bss",
                                .type = SHT_NOBITS,
                                .flags = SHF_ALLOC | SHF_WRITE,
                                .addr = high + 0x3000,
                                .align = 4,
                                .size = 0x123456});
  const auto odd = elf.section({.name = ".odd",
                                .type = 0x70000001,
                                .flags = 0xf0000000,
                                .bytes = bytes_of({9}),
                                .link = 0x01020304,
                                .info = 0x05060708,
                                .entsize = 0x090a});
  elf.load(PF_R | PF_X, text);
  elf.segment({.type = PT_NOTE,
               .flags = 0x0a0b0c04,
               .offset = 0x20,
               .vaddr = high + 0x20,
               .filesz = 0x10,
               .memsz = high + 0x18,
               .align = 8});
  const Bytes bytes = elf.build();
  const ElfFile file = open_ok(bytes);
  CHECK(file.problems().empty());

  const ElfHeader& h = file.header();
  CHECK(h.is64 == is64);
  CHECK(h.order == order);
  CHECK(h.word() == (is64 ? 8 : 4));
  CHECK(h.type == type);
  CHECK(h.machine == EM_S390);
  CHECK(h.entry.value == high + 0x1004);
  CHECK(h.phnum == 2);
  CHECK(h.shnum == elf.shnum());
  CHECK(h.shstrndx == elf.shnum() - 1);

  REQUIRE(file.segments().size() == 2);
  const Segment& load = file.segments()[0];
  CHECK(load.type == PT_LOAD);
  CHECK(load.flags == (PF_R | PF_X));
  CHECK(load.offset.value == elf.offset(text));
  CHECK(load.vaddr.value == high + 0x1000);
  CHECK(load.filesz.value == 5);
  CHECK(load.memsz.value == 5);
  const Segment& note = file.segments()[1];
  CHECK(note.index == 1);
  CHECK(note.type == PT_NOTE);
  CHECK(note.flags == 0x0a0b0c04);
  CHECK(note.offset.value == 0x20);
  CHECK(note.vaddr.value == high + 0x20);
  CHECK(note.paddr.value == high + 0x20);
  CHECK(note.filesz.value == 0x10);
  CHECK(note.memsz.value == high + 0x18);
  CHECK(note.align.value == 8);
  CHECK(note.header_offset.value == elf.phdr(1, "p_type").at);

  REQUIRE(file.sections().size() == elf.shnum());
  const Section& t = file.sections()[text];
  CHECK(t.name == ".text");
  CHECK(t.executable());
  CHECK(t.addr.value == high + 0x1000);
  CHECK(t.offset.value == elf.offset(text));
  CHECK(t.addralign.value == 16);
  CHECK(file.contents(t).value().size() == 5);
  const Section& b = file.sections()[bss];
  CHECK(b.nobits());
  CHECK(b.size.value == 0x123456);
  CHECK(file.contents(b).value().empty());
  const Section& o = *file.section(".odd");
  CHECK(o.index == odd);
  CHECK(o.type == 0x70000001);
  CHECK(o.flags == 0xf0000000);
  CHECK(o.link == 0x01020304);
  CHECK(o.info == 0x05060708);
  CHECK(o.entsize.value == 0x090a);
  CHECK(o.header_offset.value == elf.shdr(odd, "sh_name").at);
  CHECK(file.section(".none") == nullptr);
  CHECK(file.section_at(static_cast<std::uint32_t>(elf.shnum())) == nullptr);
}

TEST_CASE("Symbols in each class and order") {
  const auto [is64, order] = any_shape();
  ElfBuilder elf({.is64 = is64, .order = order});
  const auto text =
      elf.section({.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .bytes = Bytes(16)});
  // Section indices of another symbol table.
  elf.section({.name = ".other_shndx", .type = SHT_SYMTAB_SHNDX, .bytes = Bytes(64), .link = 99});
  const std::uint64_t high = is64 ? 0x8877665500000000 : 0x80000000;
  elf.symbol({.name = "here", .type = STT_SECTION, .binding = STB_LOCAL, .shndx = text});
  elf.symbol({.name = "f",
              .value = high + 2,
              .size = 14,
              .type = STT_GNU_IFUNC,
              .binding = STB_WEAK,
              .shndx = text});
  elf.symbol({.name = "absolute", .value = 7, .shndx = SHN_ABS});
  elf.symbol({.name = "far", .value = 8, .shndx = 0x1fff1, .through_xindex = true});
  elf.symbol({.name = "nowhere"});
  const Bytes bytes = elf.build();
  const ElfFile file = open_ok(bytes);
  const Section& table = *file.section(".symtab");

  const auto symbols = file.symbols(table);
  REQUIRE(symbols);
  REQUIRE(symbols->size() == 6);
  const Symbol& f = (*symbols)[2];
  CHECK(f.index == 2);
  CHECK(f.name == "f");
  CHECK(f.value.value == high + 2);
  CHECK(f.size.value == 14);
  CHECK(f.type == STT_GNU_IFUNC);
  CHECK(f.binding == STB_WEAK);
  CHECK(f.shndx == text);
  CHECK(f.in_section());
  CHECK((*symbols)[1].binding == STB_LOCAL);
  CHECK((*symbols)[3].shndx == SHN_ABS);
  CHECK(!(*symbols)[3].in_section());
  // A section's index may look like SHN_ABS in 16 bits and be none.
  CHECK((*symbols)[4].shndx == 0x1fff1);
  CHECK((*symbols)[4].in_section());
  CHECK(!(*symbols)[5].in_section());

  const auto in_place = file.symbol_table(table);
  REQUIRE(in_place);
  REQUIRE(in_place->size() == 6);
  for (std::uint32_t i = 0; i < in_place->size(); ++i) {
    const Symbol s = in_place->at(i);
    CHECK(s.value == (*symbols)[i].value);
    CHECK(s.shndx == (*symbols)[i].shndx);
    CHECK(s.name.empty());
    CHECK(in_place->name(s) == (*symbols)[i].name);
  }
  CHECK(in_place->at(6).shndx == SHN_UNDEF);
  CHECK(in_place->at(0xffffffff).value.value == 0);
}

TEST_CASE("A reserved section number without its table stays reserved") {
  ElfBuilder elf;
  elf.symbol({.name = "far", .shndx = SHN_XINDEX});
  const Bytes bytes = elf.build();
  const ElfFile file = open_ok(bytes);
  const auto symbols = file.symbols(*file.section(".symtab"));
  REQUIRE(symbols);
  CHECK((*symbols)[1].shndx == SHN_XINDEX);
  CHECK(!(*symbols)[1].in_section());
}

TEST_CASE("Relocations in each class and order, with and without addend") {
  const auto [is64, order] = any_shape();
  ElfBuilder elf({.is64 = is64, .order = order, .type = ET_REL});
  Bytes rela = elf.relocation(0x10, 1, 2, 0);
  const Bytes second = elf.relocation(0x20, 0xabcdef, 0xfe, -5);
  rela.insert(rela.end(), second.begin(), second.end());
  const auto with =
      elf.section({.name = ".rela.x", .type = SHT_RELA, .bytes = rela, .entsize = 3u * elf.word()});
  elf.section({.name = ".rel.x", .type = SHT_REL, .bytes = elf.relocation(0x30, 3, 4)});
  const Bytes bytes = elf.build();
  const ElfFile file = open_ok(bytes);

  const auto a = file.relocations(*file.section(".rela.x"));
  REQUIRE(a);
  REQUIRE(a->size() == 2);
  CHECK((*a)[0].addend == 0);
  CHECK((*a)[1].offset.value == 0x20);
  CHECK((*a)[1].symbol == 0xabcdef);
  CHECK((*a)[1].type == 0xfe);
  CHECK((*a)[1].addend == -5);
  CHECK((*a)[1].entry_offset.value == elf.offset(with) + 3u * elf.word());
  const auto b = file.relocations(*file.section(".rel.x"));
  REQUIRE(b);
  REQUIRE(b->size() == 1);
  CHECK((*b)[0].offset.value == 0x30);
  CHECK((*b)[0].symbol == 3);
  CHECK((*b)[0].type == 4);
  CHECK(!(*b)[0].addend);
}

TEST_CASE("A file without section headers has its segments") {
  ElfBuilder elf({.section_headers = false});
  const auto text = elf.section(
      {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = 0x1000, .bytes = Bytes(4)});
  elf.load(PF_R | PF_X, text);
  const Bytes bytes = elf.build();
  const ElfFile file = open_ok(bytes);
  CHECK(file.sections().empty());
  CHECK(file.problems().empty());
  CHECK(file.load_segment({0x1003}) == &file.segments()[0]);
  CHECK(file.bytes_at({0x1002}, {16}).size() == 2);
}

TEST_CASE("Compressed sections are given as stored") {
  ElfBuilder elf;
  elf.section({.name = ".debug_str", .flags = SHF_COMPRESSED, .bytes = bytes_of("stored")});
  const Bytes bytes = elf.build();
  const ElfFile file = open_ok(bytes);
  CHECK(as_text(file.contents(*file.section(".debug_str")).value()) == "stored");
}

TEST_CASE("Names of machines and types") {
  CHECK(machine_name(EM_X86_64) == "x86_64");
  CHECK(machine_name(EM_386) == "i386");
  CHECK(machine_name(EM_PPC64) == "ppc64");
  CHECK(machine_name(EM_S390) == "s390");
  CHECK(machine_name(EM_ARM) == "arm");
  CHECK(machine_name(EM_AARCH64) == "aarch64");
  CHECK(machine_name(EM_RISCV) == "riscv");
  CHECK(machine_name(2) == "EM_2");
  CHECK(type_name(ET_REL) == "REL");
  CHECK(type_name(ET_EXEC) == "EXEC");
  CHECK(type_name(ET_DYN) == "DYN");
  CHECK(type_name(ET_CORE) == "CORE");
  CHECK(type_name(0xfe00) == "ET_65024");
}
