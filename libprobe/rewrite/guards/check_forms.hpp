// The instructions with which compilers read a counter, and those that look at a site instead.
// x86-64; encodings: Intel SDM volume 2 (CMP, MOV, MOVZX, LEA).
#pragma once

#include <cstdint>
#include <optional>

#include "libprobe/code/x86_operands.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

enum class CheckForm {
  compare,  // cmpw $0,m16
  below,    // cmpw $1,m16
  load,     // movzwl m16,%r32, movzwq m16,%r64, movw m16,%r16
  merge,    // orw m16,%r16
};

// Nothing for every other instruction. What the operand refers to is not looked at.
[[nodiscard]] std::optional<CheckForm> check_form(const CodeInstruction& code);

// Where a check looks from now on.
struct SiteByte {
  std::uint8_t unarmed{};          // of the byte, while nobody traces
  std::optional<VirtAddr> site{};  // nothing: the operand's register will point there
};

// Instructions at `at` that do with the byte what the check does with its counter, where a counter
// is 0 while the byte is `unarmed`, and any other value below 65536 else:
//  - compare: `cmpb $unarmed,m8`, of the same length: the operand-size prefix stays and has no
//    effect on a byte. ZF is as it was; the other flags are not;
//  - below: `cmpb $unarmed,m8; stc; je 1f; clc; 1:`. CF is as it was; the other flags are not;
//  - load: `movzbl m8,%r32` and `lea -unarmed(%r),%r` of 16 bits, which leaves the flags and the
//    upper bits alone;
//  - merge: `cmpb $unarmed,m8; je 1f; orw $1,%r16; 1: testw %r16,%r16`: all flags are those of orw.
// `bytes` are the check's. Errors: refused (the site is too far away), internal.
[[nodiscard]] Result<Bytes> look_at_site(const CodeInstruction& code, ByteView bytes,
                                         const SiteByte& site, VirtAddr at);

// An instruction that puts an address in a register: lea, a 64-bit load (of a slot of the GOT,
// which becomes a lea), mov of an immediate.
[[nodiscard]] std::optional<unsigned> address_register(const CodeInstruction& code);
// The same at `at` with another address, of the same length.
[[nodiscard]] Result<Bytes> with_address(const CodeInstruction& code, ByteView bytes, VirtAddr at,
                                         VirtAddr target);

}  // namespace reprobe
