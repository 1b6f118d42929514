// What moving an x86 instruction to another address needs to know about it: where its relative
// fields stand, what it refers to, which registers it reads and writes. 64-bit code only.
// Numbers of registers and fields: Intel SDM volume 2, chapter 2 and table 3-1.
#pragma once

#include <cstdint>
#include <optional>

#include "libprobe/code/instruction.hpp"
#include "libprobe/code/x86_encoding.hpp"
#include "libprobe/elf/bytes.hpp"

namespace reprobe {

// A set of registers: bit n is the general purpose register that ModRM and REX number n (0 rax,
// 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi, 7 rdi, 8-15 r8-r15), of any width.
using RegisterSet = std::uint32_t;
inline constexpr unsigned kRax = 0, kRcx = 1, kRdx = 2, kRsp = 4, kRbp = 5;
inline constexpr RegisterSet kFlagsBit = 1U << 16;

enum class InstructionKind : std::uint8_t {
  other,
  nop,            // any length; not pause
  call,           // e8 rel32
  jump,           // eb rel8, e9 rel32
  conditional,    // 70-7f rel8, 0f 80-8f rel32
  loop,           // e0-e3 rel8: loopne, loope, loop, jrcxz, jecxz; there is no longer form
  transaction,    // c7 f8 rel32, xbegin: control goes to the target when the transaction fails
  ret,            // ret, iret and their kin
  indirect_call,  // register or memory, far ones too
  indirect_jump,
  endbr,  // endbr64 or endbr32: an indirect branch may come here
  trap,   // int3, hlt, ud0, ud1, ud2
};

// A field of the encoding: `at` counts from the instruction's first byte.
struct EncodedField {
  unsigned at{};
  unsigned width{};  // bytes: 1 or 4
};

struct MemoryOperand {
  std::optional<unsigned> base;   // 0-15; nothing: none, or rip
  std::optional<unsigned> index;  // 0-15
  unsigned scale{1};
  std::int64_t displacement{};
  unsigned size{};  // bytes accessed; 0 where it is not an access (lea, nop) or not known
  bool rip_relative{};
  bool segment{};  // fs or gs override: relative to thread data
};

struct CodeInstruction : Instruction {
  InstructionKind kind{};
  X86Encoding encoding;
  // The displacement of a relative branch; the target is Instruction::target.
  std::optional<EncodedField> branch_field;
  // A RIP-relative operand: its disp32 and the address it refers to (disp32 counts from the end of
  // the instruction, behind any immediate).
  std::optional<EncodedField> rip_field;
  std::optional<VirtAddr> rip_target;
  // The ModRM memory operand, the rip-relative one included.
  std::optional<MemoryOperand> memory;
  // The last immediate operand, sign-extended as the instruction uses it; not a branch's.
  std::optional<std::int64_t> immediate;
  RegisterSet reads{};   // explicit and implicit
  RegisterSet writes{};  // explicit and implicit; partial writes count as read too
  // rep, repe or repne before a string instruction: after a fault or signal in its middle it is
  // resumed at its own address.
  bool repeated_string{};
  bool locked{};
  // Only the length and the flow are certain: Capstone does not know it, or reads another operand
  // than its bytes say.
  bool opaque{};

  [[nodiscard]] bool uses_rsp() const { return ((reads | writes) & (1U << kRsp)) != 0; }
  [[nodiscard]] bool is_lea() const {
    return encoding.map == OpcodeMap::one_byte && encoding.opcode == 0x8d;
  }
  [[nodiscard]] bool rsp_is_memory_base() const { return memory && memory->base == kRsp; }
};

// What the bytes of a decoded instruction tell. Registers, the immediate and the size of the memory
// operand are Decoder's to add. Nothing where processors disagree on the length.
[[nodiscard]] std::optional<CodeInstruction> x86_instruction(const Instruction& decoded,
                                                             ByteView bytes);

}  // namespace reprobe
