#include "catch.hpp"
#include "code_bytes.hpp"
#include "libprobe/code/decoder.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kAddress = 0x401000;

CodeInstruction decoded(const char* text) {
  const auto decoder = Decoder::open(header_of(EM_X86_64), false);
  REQUIRE(decoder);
  const Bytes bytes = hex(text);
  const auto code = decoder->decode_operands(bytes, VirtAddr{kAddress});
  REQUIRE(code);
  CHECK(code->size.value == bytes.size());
  return *code;
}

constexpr RegisterSet bit(unsigned reg) { return 1U << reg; }

}  // namespace

// The field's place is where GNU as 2.40 puts the relocation of the operand's symbol.
TEST_CASE("x86-64: where the relative field of an instruction stands") {
  struct Row {
    const char* code;
    unsigned field;
  };
  const std::vector<Row> rip_relative{
      {"48 8b 05 00 00 00 00", 3},              // mov x(%rip),%rax
      {"c7 05 00 00 00 00 05 00 00 00", 2},     // movl $5,x(%rip)
      {"48 c7 05 00 00 00 00 ff ff ff ff", 3},  // movq $-1,x(%rip)
      {"66 c7 05 00 00 00 00 05 00", 3},        // movw $5,x(%rip)
      {"80 3d 00 00 00 00 01", 2},              // cmpb $1,x(%rip)
      {"81 3d 00 00 00 00 a0 86 01 00", 2},     // cmpl $100000,x(%rip)
      {"83 05 00 00 00 00 01", 2},              // addl $1,s+8(%rip)
      {"4c 8d 2d 00 00 00 00", 3},              // lea x(%rip),%r13
      {"f6 05 00 00 00 00 04", 2},              // testb $4,x(%rip)
      {"6b 0d 00 00 00 00 4d", 2},              // imul $77,x(%rip),%ecx
      {"0f a4 05 00 00 00 00 03", 3},           // shld $3,%eax,x(%rip)
      {"0f ba 25 00 00 00 00 03", 3},           // btl $3,x(%rip)
      {"0f b6 15 00 00 00 00", 3},              // movzbl x(%rip),%edx
      {"66 0f 70 0d 00 00 00 00 1b", 4},        // pshufd $0x1b,x(%rip),%xmm1
      {"66 44 0f 38 00 0d 00 00 00 00", 6},     // pshufb x(%rip),%xmm9
      {"66 0f 3a 0f 15 00 00 00 00 04", 5},     // palignr $4,x(%rip),%xmm2
      {"f2 44 0f 10 05 00 00 00 00", 5},        // movsd x(%rip),%xmm8
      {"c5 7d 6f 25 00 00 00 00", 4},           // vmovdqa x(%rip),%ymm12
      {"c4 e3 75 0f 15 00 00 00 00 03", 5},     // vpalignr $3,x(%rip),%ymm1,%ymm2
      {"c4 e2 f1 a9 15 00 00 00 00", 5},        // vfmadd213sd x(%rip),%xmm1,%xmm2
      {"62 e1 75 40 fe 15 00 00 00 00", 6},     // vpaddd x(%rip),%zmm17,%zmm18
      {"62 f3 75 48 25 15 00 00 00 00 07", 6},  // vpternlogd $7,x(%rip),%zmm1,%zmm2
      {"db 2d 00 00 00 00", 2},                 // fldt x(%rip)
      {"f0 0f c1 05 00 00 00 00", 4},           // lock xaddl %eax,x(%rip)
      {"f0 48 0f c7 0d 00 00 00 00", 5},        // lock cmpxchg16b x(%rip)
      {"f2 48 0f 38 f1 05 00 00 00 00", 6},     // crc32q x(%rip),%rax
      {"ff 15 00 00 00 00", 2},                 // call *x(%rip)
      {"ff 25 00 00 00 00", 2},                 // jmp *x(%rip)
      {"ff 35 00 00 00 00", 2},                 // push x(%rip)
      {"8f 05 00 00 00 00", 2},                 // pop x(%rip)
      {"66 0f 1f 05 00 00 00 00", 4},           // nopw x(%rip)
      {"0f 18 0d 00 00 00 00", 3},              // prefetcht0 x(%rip)
      {"48 87 1d 00 00 00 00", 3},              // xchg %rbx,x(%rip)
      {"64 48 8b 05 00 00 00 00", 4},           // mov %fs:x(%rip),%rax
      {"c1 05 00 00 00 00 03", 2},              // roll $3,x(%rip)
      {"8f e9 f0 98 15 00 00 00 00", 5},        // vpshab x(%rip),%xmm1,%xmm2
  };
  const std::vector<Row> branches{
      {"e8 00 00 00 00", 1},     // call x
      {"e9 00 00 00 00", 1},     // jmp x
      {"0f 85 00 00 00 00", 2},  // jne x
      {"c7 f8 00 00 00 00", 2},  // xbegin x
  };
  for (const Row& row : rip_relative) {
    CAPTURE(row.code);
    Bytes bytes = hex(row.code);
    bytes[row.field] = std::byte{0x10};
    bytes[row.field + 3] = std::byte{0xff};  // -0xfffff0
    const auto decoder = Decoder::open(header_of(EM_X86_64), false);
    REQUIRE(decoder);
    const auto code = decoder->decode_operands(bytes, VirtAddr{kAddress});
    REQUIRE(code);
    CHECK(code->size.value == bytes.size());
    REQUIRE(code->rip_field);
    CHECK(code->rip_field->at == row.field);
    CHECK(code->rip_field->width == 4);
    CHECK(code->rip_target->value == kAddress + bytes.size() - 0xfffff0);
    CHECK(code->memory->rip_relative);
    CHECK_FALSE(code->memory->base);
    CHECK_FALSE(code->branch_field);
  }
  for (const Row& row : branches) {
    CAPTURE(row.code);
    const CodeInstruction code = decoded(row.code);
    REQUIRE(code.branch_field);
    CHECK(code.branch_field->at == row.field);
    CHECK(code.branch_field->width == 4);
    CHECK(code.target == VirtAddr{kAddress + hex(row.code).size()});
    CHECK_FALSE(code.rip_field);
  }
}

TEST_CASE("x86-64: what kind of instruction it is") {
  struct Row {
    const char* code;
    InstructionKind kind;
  };
  using Kind = InstructionKind;
  const std::vector<Row> rows{
      {"90", Kind::nop},
      {"66 90", Kind::nop},
      {"0f 1f 44 00 00", Kind::nop},
      {"66 2e 0f 1f 84 00 00 00 00 00", Kind::nop},
      {"f3 90", Kind::other},  // pause
      {"41 90", Kind::other},  // xchg %eax,%r8d
      {"e8 00 00 00 00", Kind::call},
      {"48 e8 00 00 00 00", Kind::call},
      {"ff d0", Kind::indirect_call},
      {"41 ff 54 24 08", Kind::indirect_call},
      {"ff e0", Kind::indirect_jump},
      {"3e ff e0", Kind::indirect_jump},  // notrack
      {"ff 24 c5 00 00 40 00", Kind::indirect_jump},
      {"eb 10", Kind::jump},
      {"f2 e9 00 00 00 00", Kind::jump},  // bnd
      {"74 10", Kind::conditional},
      {"0f 8f 00 00 00 00", Kind::conditional},
      {"e3 10", Kind::loop},
      {"67 e3 10", Kind::loop},
      {"e0 10", Kind::loop},
      {"c7 f8 00 00 00 00", Kind::transaction},
      {"c3", Kind::ret},
      {"f3 c3", Kind::ret},
      {"c2 08 00", Kind::ret},
      {"48 cf", Kind::ret},
      {"f3 0f 1e fa", Kind::endbr},
      {"f3 0f 1e fb", Kind::endbr},
      {"f3 48 0f 1e c8", Kind::other},  // rdsspq
      {"cc", Kind::trap},
      {"f4", Kind::trap},
      {"0f 0b", Kind::trap},
      {"0f b9 40 0c", Kind::trap},
      {"0f 05", Kind::other},
      {"c7 00 01 00 00 00", Kind::other},
      {"ff 30", Kind::other},  // push (%rax)
  };
  for (const Row& row : rows) {
    CAPTURE(row.code);
    CHECK(static_cast<int>(decoded(row.code).kind) == static_cast<int>(row.kind));
  }
}

TEST_CASE("x86-64: operands, registers and prefixes") {
  SECTION("a stack argument") {  // mov 0x18(%rsp,%r9,4),%edx
    const CodeInstruction code = decoded("42 8b 54 8c 18");
    REQUIRE(code.memory);
    CHECK(code.memory->base == kRsp);
    CHECK(code.memory->index == 9U);
    CHECK(code.memory->scale == 4);
    CHECK(code.memory->displacement == 0x18);
    CHECK(code.memory->size == 4);
    CHECK(code.rsp_is_memory_base());
    CHECK((code.reads & bit(9)) != 0);
    CHECK((code.writes & bit(kRdx)) != 0);
    CHECK((code.writes & bit(kRsp)) == 0);
  }
  SECTION("no base, no index") {  // mov %fs:0x28,%rax
    const CodeInstruction code = decoded("64 48 8b 04 25 28 00 00 00");
    REQUIRE(code.memory);
    CHECK_FALSE(code.memory->base);
    CHECK_FALSE(code.memory->index);
    CHECK_FALSE(code.memory->rip_relative);
    CHECK(code.memory->segment);
    CHECK(code.memory->displacement == 0x28);
  }
  SECTION("push and pop move rsp") {
    for (const char* text : {"55", "5d", "41 57", "6a 01", "c9", "c3", "e8 00 00 00 00"}) {
      CAPTURE(text);
      CHECK((decoded(text).writes & bit(kRsp)) != 0);
    }
    CHECK_FALSE(decoded("48 01 d0").uses_rsp());
  }
  SECTION("sub and lea of rsp") {
    CHECK((decoded("48 83 ec 18").writes & bit(kRsp)) != 0);
    CHECK(decoded("48 83 ec 18").immediate == 0x18);
    const CodeInstruction lea = decoded("48 8d 64 24 80");  // lea -0x80(%rsp),%rsp
    CHECK(lea.is_lea());
    CHECK((lea.writes & kFlagsBit) == 0);
    CHECK(lea.memory->displacement == -0x80);
  }
  SECTION("comparisons write flags only") {
    for (const char* text : {"48 39 d8", "83 f8 05", "84 c0", "48 85 ff", "f6 c1 01"}) {
      CAPTURE(text);
      CHECK(decoded(text).writes == kFlagsBit);
    }
  }
  SECTION("writes of a part keep the rest") {
    CHECK((decoded("b0 01").reads & bit(kRax)) != 0);  // mov $1,%al
    CHECK((decoded("66 b8 01 00").reads & bit(kRax)) != 0);
    CHECK((decoded("b8 01 00 00 00").reads & bit(kRax)) == 0);
  }
  SECTION("repeated strings") {
    CHECK(decoded("f3 48 a5").repeated_string);
    CHECK(decoded("f2 ae").repeated_string);
    CHECK_FALSE(decoded("48 a5").repeated_string);
    CHECK_FALSE(decoded("f3 0f 10 00").repeated_string);  // movss
    CHECK_FALSE(decoded("f3 c3").repeated_string);
  }
  SECTION("lock") {
    CHECK(decoded("f0 48 0f b1 0e").locked);
    CHECK_FALSE(decoded("48 87 1e").locked);  // xchg locks without it
  }
  SECTION("implicit registers") {
    CHECK((decoded("48 f7 f1").writes & (bit(kRax) | bit(kRdx))) == (bit(kRax) | bit(kRdx)));
    CHECK((decoded("0f a2").writes & bit(kRcx)) != 0);        // cpuid
    CHECK((decoded("0f 05").writes & bit(11)) != 0);          // syscall
    CHECK((decoded("f3 a4").writes & bit(6)) != 0);           // rep movsb
    CHECK((decoded("48 0f b1 0e").writes & bit(kRax)) != 0);  // cmpxchg
    CHECK((decoded("48 0f b1 0e").writes & kFlagsBit) != 0);
    CHECK((decoded("c8 10 00 00").writes & bit(kRbp)) != 0);  // enter
    CHECK((decoded("d7").writes & bit(kRax)) != 0);           // xlat
  }
}

TEST_CASE("x86-64: what is not certain is said to be opaque") {
  CHECK(decoded("67 8b 05 00 00 00 00").opaque);  // mov x(%eip),%eax
  CHECK_FALSE(decoded("48 8b 05 00 00 00 00").opaque);
}

TEST_CASE("x86-64: a branch whose length depends on the processor does not decode") {
  const auto decoder = Decoder::open(header_of(EM_X86_64), false);
  REQUIRE(decoder);
  for (const char* text : {"66 e9 00 00 00 00", "66 e8 00 00 00 00", "66 0f 84 00 00 00 00"}) {
    CAPTURE(text);
    CHECK_FALSE(decoder->decode_operands(hex(text), VirtAddr{kAddress}));
  }
  // But these are what compilers emit around __tls_get_addr.
  CHECK(decoder->decode_operands(hex("66 48 e8 00 00 00 00"), VirtAddr{kAddress}));
}
