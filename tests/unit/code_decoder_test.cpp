#include "catch.hpp"
#include "code_bytes.hpp"
#include "libprobe/code/decoder.hpp"
#include "libprobe/code/x86_length.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kStart = 0x1000;
constexpr std::uint64_t a = 0x1000;  // the label on the first instruction

struct Row {
  const char* code;
  Flow flow;
  std::uint64_t target{};  // 0: none
};

// The rows stand one behind the other from kStart on, as objdump of binutils 2.40 printed them.
void check(const ElfHeader& header, bool thumb, std::size_t unit, const std::vector<Row>& rows,
           std::uint64_t start = kStart) {
  const auto decoder = Decoder::open(header, thumb);
  REQUIRE(decoder);
  Bytes all;
  for (const Row& row : rows) all = all + hex(row.code, unit);
  std::size_t at = 0;
  for (const Row& row : rows) {
    CAPTURE(row.code, header.machine, start + at);
    const std::size_t size = hex(row.code).size();
    const ByteView bytes = ByteView(all).subspan(at);
    const VirtAddr address{start + at};
    const auto instruction = decoder->decode(bytes, address);
    REQUIRE(instruction);
    CHECK(instruction->address == address);
    CHECK(instruction->size.value == size);
    CHECK(static_cast<int>(instruction->flow) == static_cast<int>(row.flow));
    CHECK(instruction->target.value_or(VirtAddr{0}).value == row.target);
    // Nothing is read past the end.
    CHECK_FALSE(decoder->decode(bytes.first(size - 1), address));
    at += size;
  }
}

constexpr Flow next = Flow::next, conditional = Flow::conditional, jump = Flow::jump,
               call = Flow::call, ret = Flow::ret, trap = Flow::trap;

}  // namespace

TEST_CASE("x86-64: lengths, branches, and what Capstone 4 does not know") {
  constexpr std::uint64_t z = 0x1069;
  check(header_of(EM_X86_64), false, 1,
        {
            {"90", next},
            {"eb fd", jump, a},
            {"eb 64", jump, z},
            {"74 f9", conditional, a},
            {"75 60", conditional, z},
            {"e3 f5", conditional, a},  // jrcxz
            {"e2 f3", conditional, a},  // loop
            {"e8 ee ff ff ff", call, a},
            {"ff d0", call},
            {"ff e0", jump},
            {"3e ff e2", jump},  // notrack jmp *%rdx
            {"ff 25 10 00 00 00", jump},
            {"c3", ret},
            {"f3 c3", ret},
            {"c2 08 00", ret},
            {"0f 0b", trap},     // ud2
            {"0f b9 c0", trap},  // ud1
            {"f4", trap},        // hlt
            {"cc", trap},
            {"0f 05", next},                        // syscall
            {"c7 f8 35 00 00 00", conditional, z},  // xbegin
            {"f3 0f 1e fa", next},                  // endbr64
            {"f3 48 0f 1e c8", next},               // rdsspq %rax
            {"0f 01 e8", next},                     // serialize
            {"62 f2 7d 48 50 c1", next},            // vpdpbusd %zmm1,%zmm0,%zmm0
            {"c4 e2 7d 50 c1", next},               // {vex} vpdpbusd %ymm1,%ymm0,%ymm0
            {"62 f3 74 48 c2 48 01 01", next},      // vcmpltph 0x40(%rax),%zmm1,%k1
            {"62 f3 f5 48 1e 4c 98 40 01", next},   // vpcmpltuq 0x1000(%rax,%rbx,4),%zmm1,%k1
            {"62 a2 75 47 cf c0", next},            // vgf2p8mulb %zmm16,%zmm17,%zmm16{%k7}
            {"0f 38 cc d1", next},                  // sha256msg1 %xmm1,%xmm2
            {"f2 eb 97", jump, a},                  // bnd jmp
            {"48 89 c3", next},
            {"48 b8 88 77 66 55 44 33 22 11", next},
            {"67 0f b9 40 0c", trap},  // ud1 0xc(%eax),%eax
            {"0f ff 44 24 10", trap},  // ud0 0x10(%rsp),%eax
        });
}

TEST_CASE("i386: targets wrap at 32 bits, REX bytes are inc and dec") {
  check(header_of(EM_386, false), false, 1,
        {{"40", next},
         {"e9 fa ff ff ff", jump, a},
         {"e9 f5 cf ff ff", jump, 0xffffe000},
         {"67 0f b9 40 0c", trap},  // ud1 0xc(%bx,%si),%eax
         {"c5 10", next},
         {"c3", ret}});
}

TEST_CASE("AArch64: branches and traps") {
  constexpr std::uint64_t z = 0x1038;
  check(header_of(EM_AARCH64), false, 4,
        {
            {"d503201f", next},
            {"17ffffff", jump, a},
            {"97fffffe", call, a},
            {"54ffffa0", conditional, a},  // b.eq
            {"b4ffff80", conditional, a},  // cbz x0
            {"35000123", conditional, z},  // cbnz w3
            {"b60fff41", conditional, a},  // tbz x1, #33
            {"371800e2", conditional, z},  // tbnz w2, #3
            {"d61f0200", jump},            // br x16
            {"d63f0060", call},            // blr x3
            {"d65f03c0", ret},
            {"d4200020", trap},  // brk
            {"00000000", trap},  // udf
            {"8b020020", next},
            {"d4000001", next},  // svc
            {"f94007e0", next},
        });
}

TEST_CASE("ARM: a condition makes every jump conditional") {
  constexpr std::uint64_t z = 0x103c;
  const std::vector<Row> rows = {
      {"e320f000", next},        {"eafffffd", jump, a},      {"0a00000b", conditional, z},  // beq
      {"ebfffffb", call, a},     {"fa00000c", call, 0x1048},                                // blx
      {"e12fff1e", ret},                                                                    // bx lr
      {"e12fff13", jump},                                                                   // bx r3
      {"112fff1e", conditional},                                                  // bxne lr
      {"e12fff33", call},                                                         // blx r3
      {"e8bd8010", ret},                                                          // pop {r4, pc}
      {"e591f000", jump},                                                         // ldr pc, [r1]
      {"e1a0f00e", jump},                                                         // mov pc, lr
      {"e08ff001", jump},                                                         // add pc, pc, r1
      {"e7f000f0", trap},                                                         // udf
      {"e1200071", trap},                                                         // bkpt
      {"e0810002", next},        {"e5913004", next},         {"ef000000", next},  // svc
  };
  check(header_of(EM_ARM, false), false, 4, rows);
  check(header_of(EM_ARM, false, std::endian::big), false, 1, rows);
  ElfHeader be8 = header_of(EM_ARM, false, std::endian::big);
  be8.flags = 0x00800000;
  check(be8, false, 4, rows);
}

TEST_CASE("Thumb: two and four bytes") {
  constexpr std::uint64_t th = 0x1048;
  constexpr std::uint64_t y = 0x1080;
  check(header_of(EM_ARM, false), true, 2,
        {
            {"bf00", next},
            {"e7fd", jump, th},              // b.n
            {"d0fc", conditional, th},       // beq.n
            {"b1b8", conditional, y},        // cbz r0
            {"b9b7", conditional, y},        // cbnz r7
            {"f7ff ffd5", call, a},          // bl
            {"f7ff efd4", call, a},          // blx
            {"f7ff bff5", jump, th},         // b.w
            {"f47f aff3", conditional, th},  // bne.w
            {"4770", ret},                   // bx lr
            {"4718", jump},                  // bx r3
            {"4798", call},                  // blx r3
            {"bd10", ret},                   // pop {r4, pc}
            {"e8bd 8830", ret},              // pop.w {r4, r5, r11, pc}
            {"468f", jump},                  // mov pc, r1
            {"e8df f000", jump},             // tbb
            {"f8d1 f000", jump},             // ldr.w pc, [r1]
            {"de00", trap},
            {"f7f0 a000", trap},  // udf.w
            {"be00", trap},       // bkpt
            {"4408", next},
            {"eb01 0002", next},
            {"f3af 8000", next},  // nop.w
            {"df00", next},       // svc
        },
        th);
}

TEST_CASE("PowerPC: a prefix makes an instruction of eight bytes") {
  constexpr std::uint64_t z = 0x1034;
  check(header_of(EM_PPC64), false, 1,
        {
            {"00000060", next},
            {"fcffff4b", jump, a},
            {"f9ffff4b", call, a},
            {"f4ff8241", conditional, a},  // beq
            {"24000042", conditional, z},  // bdnz
            {"2000804e", ret},             // blr
            {"2004804e", jump},            // bctr
            {"2104804e", call},            // bctrl
            {"2000824d", conditional},     // beqlr
            {"0800e07f", trap},
            {"02010048", jump},           // ba 0x100: absolute, its target is not looked at
            {"00000006 01006038", next},  // pli r3,1
            {"142a647c", next},
            {"00000000", trap},
        });
  check(header_of(EM_PPC64, true, std::endian::big), false, 1,
        {{"60000000", next}, {"4bfffffc", jump, a}, {"4e800020", ret}});
}

TEST_CASE("s390x: two, four and six bytes") {
  constexpr std::uint64_t z = 0x105a;
  check(header_of(EM_S390, true, std::endian::big), false, 1,
        {
            {"47000000", next},
            {"a7f4fffe", jump, a},
            {"a7740029", conditional, z},      // jne
            {"c0f4fffffffa", jump, a},         // jg
            {"c08400000024", conditional, z},  // jge
            {"c0e5fffffff4", call, a},         // brasl
            {"a7e5fff1", call, a},             // bras
            {"a726ffef", conditional, a},      // brct
            {"a727001a", conditional, z},      // brctg
            {"ec2300188064", conditional, z},  // cgrje
            {"ec28ffe8057f", conditional, a},  // clije
            {"85120012", conditional, z},      // brxle
            {"07fe", ret},
            {"07f1", jump},         // br %r1
            {"077e", conditional},  // bner %r14
            {"0707", next},         // nopr %r7
            {"0de1", call},         // basr
            {"47f01000", jump},     // b 0(%r1)
            {"a7f40001", trap},     // j .+2, onto 0001
            {"a7840001", next},     // je .+2: a conditional trap
            {"0700", next},
            {"c004ffffffd7", next},  // jgnop
            {"0000", trap},
            {"b9040012", next},      // lgr
            {"eb6ff0300004", next},  // lmg
        });
  const auto decoder = Decoder::open(header_of(EM_S390, true, std::endian::big), false);
  REQUIRE(decoder);
  CHECK_FALSE(decoder->decode(hex("0042 0000 0000"), VirtAddr{kStart}));
}

TEST_CASE("RISC-V: compressed and full instructions") {
  constexpr std::uint64_t z = 0x1036;
  check(header_of(EM_RISCV), false, 1,
        {
            {"0100", next},
            {"0100", next},
            {"f5bf", jump, a},             // c.j
            {"05c9", conditional, z},      // c.beqz
            {"e5fd", conditional, a},      // c.bnez
            {"8280", ret},                 // c.jr ra
            {"8287", jump},                // c.jr a5
            {"8297", call},                // c.jalr a5
            {"0290", trap},                // c.ebreak
            {"6ff0fffe", jump, a},         // j
            {"eff0bffe", call, a},         // jal
            {"e303b5fe", conditional, a},  // beq
            {"636cd600", conditional, z},  // bltu
            {"67800000", ret},
            {"67800700", jump},  // jr a5
            {"e7800700", call},  // jalr a5
            {"73001000", trap},  // ebreak
            {"731000c0", trap},  // unimp
            {"3385c500", next},
            {"0505", next},
        });
  const auto rv64 = Decoder::open(header_of(EM_RISCV), false);
  const auto rv32 = Decoder::open(header_of(EM_RISCV, false), false);
  REQUIRE(rv64);
  REQUIRE(rv32);
  CHECK_FALSE(rv64->decode(hex("0000 0000"), VirtAddr{kStart}));  // defined to be illegal
  CHECK_FALSE(rv64->decode(hex("1f00 0000 0000"), VirtAddr{kStart}));
  // 2801 is c.addiw s0,0 on RV64 and c.jal .+0x10 on RV32.
  CHECK(rv64->decode(hex("0128"), VirtAddr{kStart})->flow == Flow::next);
  CHECK(rv32->decode(hex("0128"), VirtAddr{kStart})->target == VirtAddr{kStart + 0x10});
}

TEST_CASE("instructions have names where Capstone knows them") {
  const auto name = [](const ElfHeader& header, bool thumb, const char* code) {
    const auto decoder = Decoder::open(header, thumb);
    REQUIRE(decoder);
    return decoder->mnemonic(hex(code), VirtAddr{kStart});
  };
  CHECK(name(header_of(EM_X86_64), false, "4889c3") == "mov");
  CHECK(name(header_of(EM_386, false), false, "40") == "inc");
  CHECK(name(header_of(EM_AARCH64), false, "2000028b") == "add");
  CHECK(name(header_of(EM_ARM, false), false, "020081e0") == "add");
  CHECK(name(header_of(EM_ARM, false), true, "70b5") == "push");
  CHECK(name(header_of(EM_PPC64), false, "142a647c") == "add");
  CHECK(name(header_of(EM_PPC64, true, std::endian::big), false, "7c642a14") == "add");
  CHECK(name(header_of(EM_S390, true, std::endian::big), false, "b9040012") == "lgr");
  CHECK(name(header_of(EM_X86_64), false, "06").empty());
}

TEST_CASE("an unknown machine has no decoder") {
  CHECK_FALSE(Decoder::open(header_of(8), false));  // EM_MIPS
}

// Lengths as objdump 2.40 prints them.
TEST_CASE("x86 lengths by opcode map") {
  const auto length = [](const char* code, bool is64) {
    return x86_length_by_map(hex(code), is64).value_or(Size{0}).value;
  };
  struct Length {
    const char* code;
    std::uint64_t is64;
    std::uint64_t is32;
  };
  const std::vector<Length> rows = {
      {"c5f877", 0, 0},                     // vzeroupper has no operand: cut off
      {"c5f9efc0 90", 4, 4},                // vpxor %xmm0,%xmm0,%xmm0
      {"c4e2795801 90", 5, 5},              // vpbroadcastd (%rcx),%xmm0
      {"c4e3790fc108 90", 6, 6},            // vpalignr $8,%xmm1,%xmm0,%xmm0
      {"c5f970c04e 90", 5, 5},              // vpshufd $0x4e,%xmm0,%xmm0
      {"62f1fd486f442401 90", 8, 8},        // vmovdqa64 0x40(%rsp),%zmm0
      {"62f1fd486f0500000000 90", 10, 10},  // vmovdqa64 0(%rip),%zmm0
      {"0f3800c1 90", 4, 4},                // pshufb %mm1,%mm0
      {"660f3a0fc108 90", 6, 6},            // palignr $8,%xmm1,%xmm0
      {"f3480f1ec8 90", 5, 0},              // rdsspq %rax; i386: dec %eax first
      {"0f01e8 90", 3, 3},                  // serialize
      {"f30fae28 90", 4, 4},                // rstorssp (%rax)
      {"c5e858c1", 4, 4},                   // vaddps %xmm1,%xmm2,%xmm0
      {"c510", 0, 0},                       // i386: lds (%eax),%edx
      {"6221", 0, 0},
      {"66c5f9efc0", 0, 0},      // #UD: a prefix before VEX
      {"67c5f9ef060000", 5, 7},  // vpxor (%esi), and 0x0 in 32-bit code
      {"0f84 00000000", 0, 0},   // a branch
      {"90", 0, 0},
      {"", 0, 0},
      {"666666", 0, 0},
      {"f348", 0, 0},
      {"660f3a0fc1", 0, 0},
      {"62f1fd486f4424", 0, 0},
  };
  for (const Length& row : rows) {
    CAPTURE(row.code);
    CHECK(length(row.code, true) == row.is64);
    CHECK(length(row.code, false) == row.is32);
  }
}
