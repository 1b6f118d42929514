// The instructions with which compilers read a counter, and those that look at a site instead.
// x86-64; encodings: Intel SDM volume 2 (CMP, MOV, MOVZX, LEA).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "libprobe/code/x86_operands.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

enum class CheckForm {
  compare,  // cmpw $0,m16
  bit,      // testb $1,m8
  below,    // cmpw $1,m16
  load,     // movzwl m16,%r32, movzwq m16,%r64, movw m16,%r16, movzbl m8,%r32
  merge,    // orw m16,%r16
};

// Nothing for every other instruction. What the operand refers to is not looked at.
[[nodiscard]] std::optional<CheckForm> check_form(const CodeInstruction& code);

// A load of 16 bits, which leaves the others of its register alone.
[[nodiscard]] bool keeps_upper_bits(const CodeInstruction& code);

// Where a check looks from now on.
struct SiteByte {
  std::uint8_t unarmed{};          // of the byte, while nobody traces
  std::optional<VirtAddr> site{};  // nothing: the operand's register will point there
  // Of a load: the flags from before it are read behind it. Of `below`: more than the carry is.
  bool flags_live{};
  // Further sites, with the same byte: it looks there too.
  std::vector<VirtAddr> others{};
};

// Instructions at `at` that do with the byte what the check does with its counter, where a counter
// is 0 while the byte is `unarmed`, and 1 else:
//  - compare and bit: `cmpb $unarmed,m8`, of the same length: an operand-size prefix stays and has
//    no effect on a byte. ZF is as it was; the other flags are not;
//  - below: `cmpb $unarmed,m8; stc; je 1f; clc; 1:`. CF is as it was; the other flags are not. With
//    ZF too: `cmpb $unarmed,m8; jne 1f; cmpq $-1,%rsp; jmp 2f; 1: cmpb %al,%al; 2:`, since %rsp is
//    never -1;
//  - load: `cmpb $unarmed,m8; setne %r8; movzbl %r8,%r32`. Where flags are live: `movzbl m8,%r32;
//    xchg %rcx,%r64; lea -unarmed(%rcx),%ecx; jrcxz 1f; mov $1,%ecx; 1: xchg %rcx,%r64`, of which
//    no instruction changes a flag;
//  - merge: `cmpb $unarmed,m8; je 1f; orw $1,%r16; 1: testw %r16,%r16`: all flags are those of orw.
// With further sites `jne 1f; cmpb $unarmed,other` follows the first comparison for each, and
// behind the last stands `1:`. `bytes` are the check's. Errors: refused (the site is too far away),
// internal.
[[nodiscard]] Result<Bytes> look_at_site(const CodeInstruction& code, ByteView bytes,
                                         const SiteByte& site, VirtAddr at);

// An instruction that puts an address in a register: lea, a 64-bit load (of a slot of the GOT,
// which becomes a lea), mov of an immediate.
[[nodiscard]] std::optional<unsigned> address_register(const CodeInstruction& code);
// The same at `at` with another address, of the same length.
[[nodiscard]] Result<Bytes> with_address(const CodeInstruction& code, ByteView bytes, VirtAddr at,
                                         VirtAddr target);

}  // namespace reprobe
