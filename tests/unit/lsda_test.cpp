#include "libprobe/code/lsda.hpp"

#include "catch.hpp"
#include "code_file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kTable = 0x4000;

// The landing pads of a function at 0x1000, 0x80 bytes long, whose LSDA is `lsda`.
std::optional<std::vector<VirtAddr>> pads(const Bytes& lsda, std::uint64_t function_size = 0x80) {
  CodeFile elf;
  const auto section = elf.builder.section(
      {.name = ".gcc_except_table", .flags = SHF_ALLOC, .addr = kTable, .bytes = lsda});
  elf.builder.load(PF_R, section);
  const auto file = ElfFile::open(memory_source(elf.builder.build()));
  REQUIRE(file);
  return landing_pads(*file, Fde{VirtAddr{0x1000}, Size{function_size}, true, VirtAddr{kTable}});
}

using Addresses = std::vector<VirtAddr>;

}  // namespace

TEST_CASE("LSDA: the landing pads of its call sites") {
  SECTION("as GCC writes it: no base, types, uleb128") {
    // Call sites 4+5 -> 0x30, 0x20+5 -> none, 0x28+0x10 -> 0x44.
    CHECK(pads(hex("ff 9b 19 01 0c  04 05 30 01  20 05 00 00  28 10 44 00  00 00")) ==
          Addresses{VirtAddr{0x1030}, VirtAddr{0x1044}});
  }
  SECTION("long uleb128") {
    CHECK(pads(hex("ff ff 01 05  00 04 80 02 00")) == Addresses{VirtAddr{0x1100}});
  }
  SECTION("udata4 call sites, as clang's -fno-integrated-as and old GCC write them") {
    CHECK(pads(hex("ff ff 03 0d  00000000 10000000 44000000 00")) == Addresses{VirtAddr{0x1044}});
  }
  SECTION("a base of its own: basic block sections") {
    // The base is pcrel sdata4 at 0x4001: 0x2000.
    CHECK(pads(hex("1b ffdfffff ff 01 04  00 04 08 00")) == Addresses{VirtAddr{0x2008}});
    // An address: absptr.
    CHECK(pads(hex("00 0030000000000000 ff 01 04  00 04 08 00")) == Addresses{VirtAddr{0x3008}});
  }
  SECTION("no call sites") { CHECK(pads(hex("ff ff 01 00")) == Addresses{}); }
  SECTION("no LSDA at all") {
    CodeFile elf;
    const auto file = ElfFile::open(memory_source(elf.builder.build()));
    REQUIRE(file);
    CHECK(landing_pads(*file, Fde{VirtAddr{0x1000}, Size{4}, false, {}}) == Addresses{});
    // There is one, but its pointer was not read.
    CHECK_FALSE(landing_pads(*file, Fde{VirtAddr{0x1000}, Size{4}, true, {}}));
    CHECK_FALSE(landing_pads(*file, Fde{VirtAddr{0x1000}, Size{4}, true, VirtAddr{0x9999}}));
  }
}

TEST_CASE("LSDA: one that cannot be read whole gives nothing") {
  CHECK_FALSE(pads(hex("ff")));
  CHECK_FALSE(pads(hex("ff ff 01")));
  CHECK_FALSE(pads(hex("ff ff 01 0c  04 05 30 01")));           // longer than the section
  CHECK_FALSE(pads(hex("ff ff 01 03  04 05 30")));              // a call site cut off
  CHECK_FALSE(pads(hex("ff ff 0f 04  04 05 30 01")));           // unknown format
  CHECK_FALSE(pads(hex("9b ffdfffff ff 01 04  00 04 08 00")));  // an indirect base
  CHECK_FALSE(pads(hex("50 ffdfffff ff 01 04  00 04 08 00")));  // an aligned base
  // More call sites than bytes of code.
  CHECK(pads(hex("ff ff 01 08  00 01 30 00  01 01 30 00"), 2));
  CHECK_FALSE(pads(hex("ff ff 01 08  00 01 30 00  01 01 30 00"), 1));
}
