// Loaded note sections: addresses that the dynamic linker writes.
#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe::test {
namespace {

struct Machine {
  const char* name;
  bool is64;
  std::endian order;
  std::uint16_t machine;
  std::uint32_t relative;  // R_*_RELATIVE
  std::uint32_t absolute;  // a symbol's address
  Bytes nop;
};

// A position-independent file with code at 0x1000, one note at 0x2000 whose location is zero in the
// file, and one relocation against it.
ElfFile loaded(const Machine& m, std::uint32_t type, std::uint32_t symbol, std::int64_t addend,
               bool rela = true) {
  ElfBuilder elf({.is64 = m.is64, .order = m.order, .type = ET_DYN, .machine = m.machine});
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .align = 4,
                                 .bytes = m.nop});
  const auto in_place = rela ? 0 : static_cast<std::uint64_t>(addend);
  const auto notes =
      elf.section({.name = ".note.stapsdt",
                   .type = SHT_NOTE,
                   .flags = SHF_ALLOC | SHF_WRITE,
                   .addr = 0x2000,
                   .align = 4,
                   .bytes = elf.stapsdt({.location = in_place, .provider = "p", .name = "n"})});
  // The descriptor follows 12 bytes of header and the owner "stapsdt\0".
  const auto entry =
      elf.relocation(0x2014, symbol, type, rela ? std::optional(addend) : std::nullopt);
  elf.section({.name = rela ? ".rela.dyn" : ".rel.dyn",
               .type = rela ? SHT_RELA : SHT_REL,
               .flags = SHF_ALLOC,
               .addr = 0x3000,
               .align = 8,
               .bytes = entry,
               .link = ElfBuilder::kSymtab,
               .entsize = entry.size()});
  elf.symbol({.name = "f", .value = 0x1000, .size = 4, .type = STT_FUNC, .shndx = text});
  elf.symbol({.name = "undefined"});
  elf.load(PF_R | PF_X, text);
  elf.load(PF_R | PF_W, notes);
  auto file = ElfFile::open(memory_source(elf.build()));
  REQUIRE(file);
  return std::move(*file);
}

}  // namespace

TEST_CASE("loaded notes are read as the dynamic linker makes them", "[notes]") {
  const auto m =
      GENERATE(Machine{"x86_64", true, std::endian::little, EM_X86_64, 8, 1,
                       bytes_of({0x90, 0xc3, 0x90, 0x90})},
               Machine{"aarch64", true, std::endian::little, EM_AARCH64, 1027, 257,
                       bytes_of({0x1f, 0x20, 3, 0xd5})},
               Machine{"s390x", true, std::endian::big, EM_S390, 12, 22, bytes_of({0x47, 0, 0, 0})},
               Machine{"i386", false, std::endian::little, EM_386, 8, 1,
                       bytes_of({0x90, 0xc3, 0x90, 0x90})});
  CAPTURE(m.name);

  SECTION("RELATIVE: the value stands in the relocation only") {
    const ElfFile file = loaded(m, m.relative, 0, 0x1000);
    const ProbeFile probes = read_probes(file);
    REQUIRE(probes.probes.size() == 1);
    CHECK(probes.probes[0].site.value == 0x1000);
    CAPTURE(probes.probes[0].evidence);
    CHECK(probes.probes[0].verdict == Verdict::live);
    CHECK_FALSE(probes.probes[0].note.canonical);
  }
  SECTION("RELATIVE in a REL table: the value stands in place") {
    const ElfFile file = loaded(m, m.relative, 0, 0x1000, false);
    CHECK(read_probes(file).probes[0].site.value == 0x1000);
  }
  SECTION("a symbol's address and an addend") {
    const ElfFile file = loaded(m, m.absolute, 1, 0);
    CHECK(read_probes(file).probes[0].site.value == 0x1000);
    CHECK(read_probes(file).probes[0].verdict == Verdict::live);
  }
  SECTION("an undefined symbol: nothing in this file tells, so nothing is dangling") {
    const ElfFile file = loaded(m, m.absolute, 2, 0);
    CHECK(read_probes(file).probes[0].verdict == Verdict::unknown);
  }
}

}  // namespace reprobe::test
