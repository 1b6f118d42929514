// Zydis' reading of instructions, against what the Intel manual says of them.

#include "libprobe/verify/x86_reading.hpp"

#include "catch.hpp"
#include "code_bytes.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr VirtAddr kAt{0x1000};

X86Reading reading(const char* bytes) {
  const auto code = read_x86(hex(bytes), kAt);
  REQUIRE(code);
  return *code;
}

bool same(const char* a, std::uint64_t a_at, const char* b, std::uint64_t b_at) {
  const Bytes x = hex(a), y = hex(b);
  return same_effect(*read_x86(x, VirtAddr{a_at}), x, *read_x86(y, VirtAddr{b_at}), y);
}

}  // namespace

TEST_CASE("reading: an operand relative to rip", "[verify]") {
  const X86Reading code = reading("66 83 3d f8 1f 00 00 00");  // cmpw $0,0x1ff8(%rip)
  CHECK(code.size == Size{8});
  CHECK(code.operation == Operation::cmp);
  REQUIRE(code.memory);
  CHECK(code.memory->address == VirtAddr{0x3000});
  CHECK(code.memory->bytes == 2);
  CHECK(code.immediate() == 0);
  REQUIRE(code.rip_field);
  CHECK(code.rip_field->at == 3);
  CHECK(code.flags_written == kStatusFlags);
  CHECK(code.flags_read == 0);
}

TEST_CASE("reading: flags and registers", "[verify]") {
  CHECK(reading("74 02").flags_read == kZeroFlag);                         // je
  CHECK(reading("48 ff c0").flags_written == (kStatusFlags & ~kCarryFlag));  // inc %rax
  const X86Reading partial = reading("0f 94 c3");                          // sete %bl
  CHECK(partial.reads == 1U << 3);
  CHECK(partial.writes == 1U << 3);
  const X86Reading wide = reading("89 f8");  // mov %edi,%eax
  CHECK(wide.reads == 1U << 7);
  CHECK(wide.writes == 1U << 0);
  CHECK(reading("0f a2").writes == 0xf);  // cpuid: rax, rbx, rcx, rdx
}

TEST_CASE("reading: flow", "[verify]") {
  CHECK(reading("e8 00 00 00 00").flow == ReadFlow::call);
  CHECK(reading("ff 15 00 00 00 00").flow == ReadFlow::indirect_call);
  CHECK(reading("ff 25 00 00 00 00").flow == ReadFlow::indirect_jump);
  CHECK(reading("eb fe").target == kAt);
  CHECK(reading("e3 00").flow == ReadFlow::conditional);
  CHECK(reading("c7 f8 00 00 00 00").flow == ReadFlow::conditional);
  CHECK(reading("f3 c3").flow == ReadFlow::ret);
  CHECK(reading("cc").flow == ReadFlow::trap);
  CHECK(reading("0f 0b").flow == ReadFlow::trap);
  CHECK(reading("f3 90").operation == Operation::other);  // pause
  CHECK(reading("41 90").operation == Operation::xchg);  // xchg %r8,%rax
  CHECK(reading("66 0f 1f 44 00 00").operation == Operation::nop);
  // rel16 for AMD, rel32 for Intel; with REX.W, as calls of __tls_get_addr have, rel32 for both.
  CHECK_FALSE(read_x86(hex("66 e8 00 00 00 00"), kAt));
  CHECK(reading("66 66 48 e8 00 00 00 00").size == Size{8});
}

TEST_CASE("reading: the same effect elsewhere", "[verify]") {
  CHECK(same("8b 05 00 01 00 00", 0x1000, "8b 05 f0 00 00 00", 0x1010));
  CHECK_FALSE(same("8b 05 00 01 00 00", 0x1000, "8b 05 00 01 00 00", 0x1010));
  CHECK(same("74 0e", 0x1000, "0f 84 0a f0 ff ff", 0x2000));        // je 0x1010
  CHECK_FALSE(same("74 0e", 0x1000, "0f 85 0a f0 ff ff", 0x2000));  // jne
  CHECK_FALSE(same("e3 0e", 0x1000, "67 e3 0d", 0x1000));           // jrcxz, jecxz
  CHECK_FALSE(same("8b 45 f8", 0x1000, "8b 45 f0", 0x1000));
  CHECK_FALSE(same("89 f8", 0x1000, "8b c7", 0x1000));  // another encoding is not taken for the same
}
