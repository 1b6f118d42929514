#include "catch.hpp"
#include "code_file.hpp"
#include "libprobe/code/functions.hpp"

using namespace reprobe;
using namespace reprobe::test;

TEST_CASE("functions by symbol: edges and gaps, in every class and byte order") {
  const bool is64 = GENERATE(true, false);
  const auto order = GENERATE(std::endian::little, std::endian::big);
  CodeFile elf({.is64 = is64, .order = order});
  elf.function("first", 0x1000, 0x10);
  elf.function("second", 0x1010, 0x8);
  elf.function("third", 0x1020, 0x8);
  // Asked out of order, and twice.
  FoundFunctions found(
      elf, {0x1027, 0x1000, 0x100f, 0x1010, 0x1017, 0x1018, 0x1000, 0x1020, 0x1028, 0xfff});
  CHECK(found.at(0xfff) == "none");
  CHECK(found.at(0x1000) == "first 1000+10 SL");
  CHECK(found.at(0x100f) == "first 1000+10 SL");
  CHECK(found.at(0x1010) == "second 1010+8 SL");
  CHECK(found.at(0x1017) == "second 1010+8 SL");
  CHECK(found.at(0x1018) == "none");
  CHECK(found.at(0x1020) == "third 1020+8 SL");
  CHECK(found.at(0x1027) == "third 1020+8 SL");
  CHECK(found.at(0x1028) == "none");
  CHECK(describe(found.lookup.functions[6]) == "first 1000+10 SL");
  CHECK(found.lookup.has_symtab);
  CHECK_FALSE(found.lookup.has_unwind);
}

TEST_CASE("a function inside another: the inner one, and the outer one behind it") {
  CodeFile elf;
  elf.function("outer", 0x1000, 0x100);
  elf.function("inner", 0x1020, 0x10);
  elf.function("innermost", 0x1024, 0x4);
  elf.label("label", 0x1050, 0x10);  // a label with a size is no function
  FoundFunctions found(elf,
                       {0x101f, 0x1020, 0x1023, 0x1024, 0x1028, 0x1030, 0x1055, 0x10ff, 0x1100});
  CHECK(found.at(0x101f) == "outer 1000+100 SL");
  CHECK(found.at(0x1020) == "inner 1020+10 SL");
  CHECK(found.at(0x1023) == "inner 1020+10 SL");
  CHECK(found.at(0x1024) == "innermost 1024+4 SL");
  CHECK(found.at(0x1028) == "inner 1020+10 SL");
  CHECK(found.at(0x1030) == "outer 1000+100 SL");
  CHECK(found.at(0x1055) == "outer 1000+100 SL");
  CHECK(found.at(0x10ff) == "outer 1000+100 SL");
  CHECK(found.at(0x1100) == "none");
}

TEST_CASE("aliases: global before weak before local, then with a size, shorter, alphabetical") {
  using Alias = std::tuple<const char*, std::uint64_t, std::uint8_t>;
  struct Case {
    std::vector<Alias> aliases;
    const char* expected;
  };
  const Case c = GENERATE(values<Case>({
      {{{"aa", 8, STB_LOCAL}, {"weak_one", 8, STB_WEAK}, {"a_global", 8, STB_GLOBAL}},
       "a_global 1000+8 x3 SL"},
      {{{"aa", 8, STB_LOCAL}, {"weak_one", 8, STB_WEAK}}, "weak_one 1000+8 x2 SL"},
      {{{"a", 0, STB_GLOBAL}, {"sized", 8, STB_GLOBAL}}, "sized 1000+8 x2 SL"},
      {{{"longer", 8, STB_GLOBAL}, {"short", 8, STB_GLOBAL}}, "short 1000+8 x2 SL"},
      {{{"bb", 8, STB_GLOBAL}, {"ab", 8, STB_GLOBAL}, {"ba", 8, STB_GLOBAL}}, "ab 1000+8 x3 SL"},
      {{{"f", 8, STB_GLOBAL}, {"f", 8, STB_LOCAL}}, "f 1000+8 SL"},
      {{{"f@@V2", 8, STB_GLOBAL}, {"f@V1", 8, STB_GLOBAL}}, "f 1000+8 SL"},
      {{{"@f", 8, STB_GLOBAL}}, "@f 1000+8 SL"},
      // The longer alias covers more.
      {{{"a", 4, STB_GLOBAL}, {"b", 8, STB_LOCAL}}, "a 1000+8 x2 SL"},
  }));
  const bool reversed = GENERATE(false, true);
  CodeFile elf;
  auto aliases = c.aliases;
  if (reversed) std::reverse(aliases.begin(), aliases.end());
  for (const auto& [name, size, binding] : aliases) elf.function(name, 0x1000, size, binding);
  elf.function("other", 0x1010, 8);
  CHECK(FoundFunctions(elf, {0x1001}).at(0x1001) == c.expected);
}

TEST_CASE("symbols without a size end at the next one, at their section, or where an FDE says") {
  CodeFile elf;
  elf.function("sized", 0x1000, 8);
  elf.function("asm", 0x1100, 0);
  elf.label("loop", 0x1180);
  elf.function("described", 0x1200, 0);
  elf.function("sized_alias", 0x1300, 8);
  elf.function("unsized_alias", 0x1300, 0);
  elf.function("last", 0x1f00, 0);
  SECTION("symbols alone") {
    FoundFunctions found(elf, {0x1000, 0x1008, 0x1100, 0x117f, 0x1180, 0x11ff, 0x1210, 0x1307,
                               0x1308, 0x1f00, 0x1fff, 0x2000});
    CHECK(found.at(0x1008) == "none");  // the end of `sized` is known
    CHECK(found.at(0x1100) == "asm 1100+80 SL");
    CHECK(found.at(0x117f) == "asm 1100+80 SL");
    CHECK(found.at(0x1180) == "loop 1180+80 x0 SL");
    CHECK(found.at(0x11ff) == "loop 1180+80 x0 SL");
    CHECK(found.at(0x1210) == "described 1200+100 SL");
    CHECK(found.at(0x1307) == "sized_alias 1300+8 x2 SL");
    CHECK(found.at(0x1308) == "none");
    CHECK(found.at(0x1f00) == "last 1f00+100 SL");
    CHECK(found.at(0x1fff) == "last 1f00+100 SL");
    CHECK(found.at(0x2000) == "none");
  }
  SECTION("with FDEs") {
    elf.label("sized_label", 0x1404, 4);
    elf.frames({{0x1000, 0x20}, {0x1100, 0x90}, {0x1200, 0x40}, {0x1400, 0x10}});
    FoundFunctions found(elf,
                         {0x1000, 0x1008, 0x1100, 0x1185, 0x1190, 0x123f, 0x1240, 0x1405, 0x1410});
    CHECK(found.lookup.has_unwind);
    CHECK(found.at(0x1000) == "sized 1000+8 SF");  // the symbol's size is believed
    CHECK(found.at(0x1008) == "sized 1000+20 SF");
    CHECK(found.at(0x1100) == "asm 1100+90 SF");
    CHECK(found.at(0x1185) == "asm 1100+90 SF");  // an FDE tells more than a label
    CHECK(found.at(0x1190) == "loop 1180+80 x0 S");
    CHECK(found.at(0x123f) == "described 1200+40 SF");
    CHECK(found.at(0x1240) == "described 1200+100 S");
    CHECK(found.at(0x1405) == "? 1400+10 x0 F");
    CHECK(found.at(0x1410) == "none");
  }
}

TEST_CASE("what is no name of code") {
  CodeFile elf;
  const auto data = elf.builder.section(
      {.name = ".data", .flags = SHF_ALLOC | SHF_WRITE, .addr = 0x5000, .bytes = Bytes(16)});
  for (const char* name : {"$x", "$d.1", ".L12", ".annobin_a.c", ""}) elf.label(name, 0x1100);
  elf.builder.symbol({"in_data", 0x1100, 0, STT_NOTYPE, STB_GLOBAL, data});
  elf.builder.symbol({"etext", 0x2000, 0, STT_NOTYPE, STB_GLOBAL, elf.text});
  elf.builder.symbol({"object", 0x1100, 0x100, STT_OBJECT, STB_GLOBAL, elf.text});
  elf.builder.symbol({"section", 0x1100, 0x100, STT_SECTION, STB_LOCAL, elf.text});
  elf.builder.symbol({"undefined", 0x1100, 0x100, STT_FUNC, STB_GLOBAL, SHN_UNDEF});
  elf.builder.symbol({"absolute", 0x1100, 0x100, STT_FUNC, STB_GLOBAL, SHN_ABS});
  SECTION("alone") { CHECK(FoundFunctions(elf, {0x1110}).at(0x1110) == "none"); }
  SECTION("they do not end a function either") {
    elf.function("f", 0x1000, 0);
    CHECK(FoundFunctions(elf, {0x1110}).at(0x1110) == "f 1000+1000 SL");
  }
  SECTION("an ifunc is a function") {
    elf.builder.symbol({"ifunc", 0x1100, 0x20, STT_GNU_IFUNC, STB_GLOBAL, elf.text});
    CHECK(FoundFunctions(elf, {0x1110}).at(0x1110) == "ifunc 1100+20 SL");
  }
  SECTION("a label in code is a name") {
    elf.label("start", 0x1100);
    CHECK(FoundFunctions(elf, {0x1110}).at(0x1110) == "start 1100+f00 x0 SL");
  }
}

TEST_CASE("ET_REL: addresses are offsets in their section, FDEs are not looked at") {
  CodeFile elf({.type = ET_REL});
  const auto cold = elf.builder.section(
      {.name = ".text.cold", .flags = SHF_ALLOC | SHF_EXECINSTR, .bytes = Bytes(0x80)});
  elf.function("hot", 0x10, 0x20);
  elf.builder.symbol({"cold", 0x10, 0x8, STT_FUNC, STB_LOCAL, cold});
  elf.builder.symbol({"tail", 0x40, 0, STT_FUNC, STB_LOCAL, cold, true});
  FoundFunctions found(elf, {{VirtAddr{0x14}, elf.text},
                             {VirtAddr{0x14}, cold},
                             {VirtAddr{0x18}, cold},
                             {VirtAddr{0x44}, cold},
                             {VirtAddr{0x44}, elf.text},
                             {VirtAddr{0x80}, cold}});
  CHECK(found.at(0x14, elf.text) == "hot 10+20 SL");
  CHECK(found.at(0x14, cold) == "cold 10+8 SL");
  CHECK(found.at(0x18, cold) == "none");
  CHECK(found.at(0x44, cold) == "tail 40+40 SL");
  CHECK(found.at(0x44, elf.text) == "none");
  CHECK(found.at(0x80, cold) == "none");
  CHECK_FALSE(found.lookup.has_unwind);
}

// ELF for the Arm Architecture, 5.5.3 and 5.5.5.
TEST_CASE("ARM: which instruction set a function uses") {
  CodeFile elf({.is64 = false, .machine = EM_ARM});
  elf.label("$a", 0x1000);
  elf.function("arm", 0x1000, 0x20);
  elf.label("$d", 0x1018);
  elf.label("$t.5", 0x1100);
  elf.function("thumb", 0x1101, 0x20);
  elf.label("from_asm", 0x1200);
  elf.label("$a", 0x1300);
  elf.label("arm_asm", 0x1300);
  elf.label("$template", 0x1310);
  FoundFunctions found(elf, {0x1004, 0x101c, 0x1100, 0x1120, 0x1204, 0x1314});
  CHECK(found.at(0x1004) == "arm 1000+20 SL");
  CHECK(found.at(0x101c) == "arm 1000+20 SL");
  CHECK(found.at(0x1100) == "thumb 1100+20 STL");
  CHECK(found.at(0x1120) == "none");
  CHECK(found.at(0x1204) == "from_asm 1200+100 x0 STL");
  CHECK(found.at(0x1314) == "arm_asm 1300+d00 x0 SL");
}

TEST_CASE("an LSDA means landing pads") {
  CodeFile elf;
  FrameBuilder frame(kFrame, 8, std::endian::little);
  const auto cie = frame.cie("zLR", hex("00 00"));
  frame.fde(cie, {0x1000, 0x10}, 0x00, hex("08 0050000000000000"));
  frame.fde(cie, {0x1010, 0x10}, 0x00, hex("08 0000000000000000"));
  const auto section = elf.builder.section(
      {.name = ".eh_frame", .flags = SHF_ALLOC, .addr = kFrame, .bytes = frame.bytes()});
  elf.builder.load(PF_R, section);
  elf.function("catches", 0x1000, 0x10);
  elf.function("plain", 0x1010, 0x10);
  elf.function("undescribed", 0x1020, 0x10);
  FoundFunctions found(elf, {0x1004, 0x1014, 0x1024});
  CHECK(found.at(0x1004) == "catches 1000+10 SFL");
  CHECK(found.at(0x1014) == "plain 1010+10 SF");
  CHECK(found.at(0x1024) == "undescribed 1020+10 S");
}

TEST_CASE(".dynsym serves where .symtab is stripped, and is not counted twice") {
  const bool stripped = GENERATE(true, false);
  CodeFile elf;
  // memcpy and its alias, as GNU ld writes them into both tables.
  Bytes strings = bytes_of(std::string_view("\0memcpy\0memmove\0", 16));
  Bytes table(24);
  const auto symbol = [&](std::uint64_t name, std::uint64_t value) {
    const std::size_t at = table.size();
    const auto set = [&](std::string_view field, std::uint64_t v) {
      put(table, field_of(field, true, at), std::endian::little, v);
    };
    set("st_name", name);
    set("st_info", STB_GLOBAL << 4 | STT_FUNC);
    set("st_shndx", elf.text);
    set("st_value", value);
    set("st_size", 0x10);
  };
  symbol(1, 0x1000);
  symbol(8, 0x1000);
  symbol(8, 0x1020);
  const auto strtab =
      elf.builder.section({.name = ".dynstr", .type = SHT_STRTAB, .bytes = strings});
  NewSection dynsym{.name = ".dynsym", .type = SHT_DYNSYM, .align = 8, .bytes = table};
  dynsym.link = strtab;
  dynsym.entsize = 24;
  elf.builder.section(dynsym);
  if (!stripped) {
    elf.function("memcpy@@GLIBC_2.14", 0x1000, 0x10);
    elf.function("memmove@@GLIBC_2.2.5", 0x1000, 0x10);
    elf.function("__memcpy_local", 0x1000, 0x10, STB_LOCAL);
    elf.function("local", 0x1020, 0x10, STB_LOCAL);
  }
  FoundFunctions found(elf, {0x1004, 0x1024});
  CHECK(found.at(0x1004) == (stripped ? "memcpy 1000+10 x2 SL" : "memcpy 1000+10 x3 SL"));
  CHECK(found.at(0x1024) == "memmove 1020+10 SL");  // the name that other modules know
  CHECK(found.lookup.has_symtab == !stripped);
}

TEST_CASE("a size that passes the end of the address space is cut there") {
  CodeFile elf;
  elf.function("huge", 0x1010, ~std::uint64_t{0});
  FoundFunctions found(elf, {0x100f, 0x1010, ~std::uint64_t{0} - 1});
  CHECK(found.at(0x100f) == "none");
  CHECK(found.at(0x1010) == "huge 1010+ffffffffffffefef SL");
  CHECK(found.at(~std::uint64_t{0} - 1) == "huge 1010+ffffffffffffefef SL");
}

TEST_CASE("very long names are cut") {
  CodeFile elf;
  elf.function(std::string(5000, 'n'), 0x1000, 8);
  elf.function(std::string(5000, 'n') + "x", 0x1000, 8);
  FoundFunctions found(elf, {0x1000});
  REQUIRE(found.lookup.functions[0]);
  CHECK(found.lookup.functions[0]->name == std::string(4096, 'n') + "...");
  CHECK(found.lookup.functions[0]->names_here == 2);
}
