// Copies of .symtab and .strtab with the stubs' symbols, and files whose tables must stay.

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/sled/stub_symbols.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint32_t kStubSection = 1;  // any section's index
const std::vector<StubSymbol> kSymbols{{VirtAddr{0x5000}, Size{20}, "f"},
                                       {VirtAddr{0x5020}, Size{10}, ""},
                                       {VirtAddr{0x5040}, Size{30}, "f"},
                                       {VirtAddr{0x5060}, Size{40}, "other"}};

// A local and two global symbols.
struct Sample {
  Sample() {
    text = builder.section(
        {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = 0x1000, .bytes = Bytes(64)});
    builder.load(PF_R | PF_X, text);
    builder.symbol({"local", 0x1000, 4, STT_FUNC, STB_LOCAL, text});
    builder.symbol({"f", 0x1004, 4, STT_FUNC, STB_GLOBAL, text});
    builder.symbol({"other", 0x1008, 4, STT_FUNC, STB_GLOBAL, text});
  }
  ElfBuilder builder;
  std::uint32_t text{};
};

std::vector<std::string> names_of(const ElfFile& file) {
  std::vector<std::string> names;
  const auto table = file.symbol_table(*file.section(".symtab"));
  REQUIRE(table);
  for (std::uint32_t i = 1; i < table->size(); ++i) names.emplace_back(table->name(table->at(i)));
  return names;
}

bool grows(const Bytes& bytes) {
  const auto file = ElfFile::open(memory_source(bytes));
  REQUIRE(file);
  return SymbolsWithStubs::of(*file, Plan{}, kSymbols, kStubSection).has_value();
}

}  // namespace

TEST_CASE("the stubs' symbols stand behind the local ones", "[sled]") {
  Sample sample;
  const auto file = ElfFile::open(memory_source(sample.builder.build()));
  REQUIRE(file);
  auto headers = SectionTable::of(*file);
  REQUIRE(headers);
  const auto symbols = SymbolsWithStubs::of(*file, Plan{}, kSymbols, kStubSection);
  REQUIRE(symbols);
  Plan plan;
  REQUIRE(symbols->append(plan, *headers));
  REQUIRE(headers->write(plan));
  const auto output = apply(plan, file->source());
  REQUIRE(output);
  const auto result = ElfFile::open(memory_source(*output));
  REQUIRE(result);
  CHECK(names_of(*result) ==
        std::vector<std::string>{"local", "f.sled", "f.sled", "other.sled", "f", "other"});
  CHECK(result->section(".symtab")->info == 5);
  const auto table = result->symbol_table(*result->section(".symtab"));
  REQUIRE(table);
  const Symbol stub = table->at(3);
  CHECK(stub.value == VirtAddr{0x5040});
  CHECK(stub.size == Size{30});
  CHECK(stub.type == STT_FUNC);
  CHECK(stub.binding == STB_LOCAL);
  CHECK(stub.shndx == kStubSection);
  CHECK(table->at(5).value == VirtAddr{0x1004});
  // "f.sled" once.
  CHECK(result->section(".strtab")->size.value ==
        file->section(".strtab")->size.value + sizeof("f.sled") + sizeof("other.sled"));
}

TEST_CASE("what changes in the old table is in the copy", "[sled]") {
  Sample sample;
  const auto file = ElfFile::open(memory_source(sample.builder.build()));
  REQUIRE(file);
  auto headers = SectionTable::of(*file);
  REQUIRE(headers);
  Plan plan;
  // st_value of symbol 2, the first global one.
  const FileOffset value{file->section(".symtab")->offset.value + 2 * 24 + 8};
  REQUIRE(plan.replace(file->source(), value, bytes_of({0x20}), "a test"));
  const auto symbols = SymbolsWithStubs::of(*file, plan, kSymbols, kStubSection);
  REQUIRE(symbols);
  REQUIRE(symbols->append(plan, *headers));
  REQUIRE(headers->write(plan));
  const auto output = apply(plan, file->source());
  REQUIRE(output);
  const auto result = ElfFile::open(memory_source(*output));
  REQUIRE(result);
  const auto table = result->symbol_table(*result->section(".symtab"));
  REQUIRE(table);
  CHECK(table->at(5).value == VirtAddr{0x1020});
}

TEST_CASE("tables that cannot grow stay", "[sled]") {
  Sample sample;
  REQUIRE(grows(sample.builder.build()));
  const auto poked = [&](const char* field, std::uint64_t value, std::uint32_t behind = 0) {
    Bytes bytes = sample.builder.build();
    sample.builder.poke(bytes, sample.builder.shdr(sample.builder.symtab() + behind, field), value);
    return bytes;
  };
  SECTION("stripped") { CHECK_FALSE(grows(poked("sh_type", SHT_PROGBITS))); }
  SECTION("more local symbols than symbols") {
    CHECK(grows(poked("sh_info", 4)));
    CHECK_FALSE(grows(poked("sh_info", 5)));
    CHECK_FALSE(grows(poked("sh_info", 0)));
  }
  SECTION("entries of another size") { CHECK_FALSE(grows(poked("sh_entsize", 32))); }
  SECTION("loaded") {
    CHECK_FALSE(grows(poked("sh_flags", SHF_ALLOC)));
    CHECK_FALSE(grows(poked("sh_flags", SHF_ALLOC, 1)));
  }
  SECTION("names that are also the sections'") {
    CHECK_FALSE(grows(poked("sh_link", sample.builder.symtab() + 2)));
  }
  SECTION("names without an end") {
    const Bytes bytes = sample.builder.build();
    const auto file = ElfFile::open(memory_source(bytes));
    REQUIRE(file);
    CHECK_FALSE(grows(poked("sh_size", file->section(".strtab")->size.value - 1, 1)));
  }
  SECTION("something counts its entries") {
    sample.builder.section(
        {.name = ".group", .type = SHT_GROUP, .bytes = Bytes(8), .link = ElfBuilder::kSymtab});
    CHECK_FALSE(grows(sample.builder.build()));
  }
  SECTION("two tables") {
    sample.builder.section({.name = ".second", .type = SHT_SYMTAB, .entsize = 24});
    CHECK_FALSE(grows(sample.builder.build()));
  }
}
