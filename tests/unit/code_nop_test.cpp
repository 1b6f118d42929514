#include "catch.hpp"
#include "code_bytes.hpp"
#include "libprobe/code/nop.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

struct NopRow {
  const char* bytes;  // with something behind the site, so that the size is found and not given
  NopKind kind;
  std::uint64_t size;
};

void check(const ElfHeader& header, bool thumb, const std::vector<NopRow>& rows) {
  for (const NopRow& row : rows) {
    CAPTURE(row.bytes, header.machine, thumb);
    const Nop nop = nop_at(hex(row.bytes), header, thumb);
    CHECK(static_cast<int>(nop.kind) == static_cast<int>(row.kind));
    CHECK(nop.size == row.size);
  }
}

constexpr NopKind none = NopKind::none, nop = NopKind::nop, nop5 = NopKind::nop5,
                  nop10 = NopKind::nop10, other = NopKind::other;

}  // namespace

// Encodings: Intel SDM volume 2, NOP and XCHG; sizes as objdump prints them.
TEST_CASE("x86-64 nops: the probe macros' three forms, and all others") {
  const std::vector<NopRow> rows = {
      {"90 c3", nop, 1},
      {"90", nop, 1},
      {"90 90 90", nop, 1},
      {"0f1f440000 c3", nop5, 5},
      {"90 0f1f440000 c3", nop5, 6},
      {"90 662e0f1f840000000000 c3", nop10, 11},
      // One byte of the pattern is another: a plain nop and what follows it.
      {"90 0f1f440001 c3", nop, 1},
      {"90 0f1f4400", nop, 1},
      {"90 662e0f1f840000000001 c3", nop, 1},
      {"90 66660f1f840000000000 c3", nop, 1},
      {"90 662e0f1f8400000000", nop, 1},
      // Padding.
      {"6690 c3", other, 2},
      {"666690 c3", other, 3},
      {"6666666690 c3", other, 5},
      {"4890 c3", other, 2},
      {"0f1f00 c3", other, 3},
      {"0f1f4000 c3", other, 4},
      {"3e0f1f4000 c3", other, 5},
      {"0f1f440008 c3", other, 5},
      {"660f1f440000 c3", other, 6},
      {"0f1f8000000000 c3", other, 7},
      {"0f1f840000000000 c3", other, 8},
      {"660f1f840000000000 c3", other, 9},
      {"662e0f1f840000000000 c3", other, 10},
      {"66662e0f1f840000000000 c3", other, 11},
      {"66666666662e0f1f840000000000 c3", other, 14},
      {"6666666666662e0f1f840000000000 c3", other, 15},
      {"0f1fc0 c3", other, 3},
      // No nops: pause, xchg %r8,%rax, endbr64, prefetch, longer than any instruction, cut off.
      {"f390 c3", none, 0},
      {"4190 c3", none, 0},
      {"f30f1efa", none, 0},
      {"0f0d08 c3", none, 0},
      {"0f1fc8 c3", none, 0},
      {"c3", none, 0},
      {"cc", none, 0},
      {"00", none, 0},
      {"6666666666666666666666666666666690", none, 0},
      {"0f1f4400", none, 0},
      {"0f1f", none, 0},
      {"66", none, 0},
      {"", none, 0},
      // A move of a register to itself clears the upper half on x86-64.
      {"89f6 c3", none, 0},
  };
  check(header_of(EM_X86_64), false, rows);
  check(header_of(EM_X86_64, false), false, rows);  // x32
}

TEST_CASE("i386 nops: only 90 is a probe's") {
  check(header_of(EM_386, false), false,
        {
            {"90 c3", nop, 1},
            {"90 0f1f440000 c3", nop, 1},
            {"90 662e0f1f840000000000 c3", nop, 1},
            {"0f1f440000 c3", other, 5},
            {"6690 c3", other, 2},
            {"f390", none, 0},
            {"4890", none, 0},               // dec %eax; nop
            {"4190", none, 0},               // inc %ecx; nop
            {"670f1f00 c3", other, 4},       // nopl (%bx,%si)
            {"670f1f0600 00 c3", other, 6},  // nopl 0x0: a 16-bit address
            {"670f1f0600", none, 0},
            // Padding of older assemblers.
            {"89f6 c3", other, 2},
            {"8d7600 c3", other, 3},
            {"8d742600 c3", other, 4},
            {"2e8d742600 c3", other, 5},
            {"8db600000000 c3", other, 6},
            {"8db42600000000 c3", other, 7},
            {"2e8db42600000000 c3", other, 8},
            {"8dbc2700000000 c3", other, 7},
            {"8d7601 c3", none, 0},  // lea 1(%esi),%esi
            {"89f7", none, 0},       // mov %esi,%edi
        });
}

TEST_CASE("nops of the fixed-length machines, in their byte orders") {
  check(header_of(EM_AARCH64), false,
        {{"1f2003d5 c0035fd6", nop, 4},
         {"1f2003d5", nop, 4},
         {"1f2003", none, 0},
         {"d503201f", none, 0},
         {"3f2003d5", none, 0}});  // yield
  // AArch64 code is little-endian in a big-endian file too.
  check(header_of(EM_AARCH64, true, std::endian::big), false, {{"1f2003d5", nop, 4}});
  check(header_of(EM_PPC64), false,
        {{"00000060", nop, 4}, {"60000000", none, 0}, {"00004260", none, 0}});
  check(header_of(EM_PPC64, true, std::endian::big), false,
        {{"60000000", nop, 4}, {"00000060", none, 0}});
  check(header_of(EM_RISCV), false,
        {{"0100 8280", nop, 2},
         {"0100", nop, 2},
         {"13000000", nop, 4},
         {"1300", none, 0},
         {"0000", none, 0},
         {"93000000", none, 0}});  // li ra,0
}

TEST_CASE("s390x nops: bc 0,0 is a probe's, other branches never taken are not") {
  check(header_of(EM_S390, true, std::endian::big), false,
        {
            {"47000000 07fe", nop, 4},
            {"0700 07fe", other, 2},
            {"0707 07fe", other, 2},
            {"47001000", other, 4},
            {"a7040000", other, 4},
            {"c00400000000", other, 6},
            {"470000", none, 0},
            {"47f01000", none, 0},
            {"07fe", none, 0},
            {"00000047", none, 0},
        });
}

TEST_CASE("ARM nops: both instruction sets and all three byte orders") {
  const std::vector<NopRow> arm_little = {
      {"00f020e3", nop, 4}, {"0000a0e1", nop, 4}, {"01f020e3", none, 0}, {"00bf", none, 0}};
  const std::vector<NopRow> thumb_little = {{"00bf 7047", nop, 2},  {"c046 7047", nop, 2},
                                            {"aff30080", other, 4}, {"aff3", none, 0},
                                            {"10bf", none, 0},  // yield
                                            {"00f020e3", none, 0}};
  const std::vector<NopRow> arm_big = {{"e320f000", nop, 4}, {"e1a00000", nop, 4}};
  const std::vector<NopRow> thumb_big = {
      {"bf00", nop, 2}, {"46c0", nop, 2}, {"f3af8000", other, 4}};
  check(header_of(EM_ARM, false), false, arm_little);
  check(header_of(EM_ARM, false), true, thumb_little);
  ElfHeader big = header_of(EM_ARM, false, std::endian::big);
  check(big, false, arm_big);
  check(big, true, thumb_big);
  big.flags = 0x05000000 | 0x00800000;  // EF_ARM_BE8: data big-endian, code little-endian
  check(big, false, arm_little);
  check(big, true, thumb_little);
}

TEST_CASE("a machine whose nop is not known says so") {
  constexpr std::uint16_t EM_MIPS = 8;
  CHECK_FALSE(knows_nops(EM_MIPS));
  check(header_of(EM_MIPS), false, {{"00000000", none, 0}, {"90", none, 0}});
  for (const auto machine : {EM_386, EM_X86_64, EM_AARCH64, EM_PPC64, EM_S390, EM_ARM, EM_RISCV}) {
    CAPTURE(machine);
    CHECK(knows_nops(machine));
  }
}
