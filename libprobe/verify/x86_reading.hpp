// x86-64 instructions as Zydis reads them. The planner reads with Capstone and tables of its own
// (libprobe/code); what verify proves of code rests on this reading, so that no mistake of the
// planner's decoder is a mistake of the proof. The only file that includes Zydis is
// x86_reading.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/elf/types.hpp"

namespace reprobe {

// The longest instruction (Intel SDM volume 2, 2.3.11).
inline constexpr Size kLongestReading{15};

// A set of general purpose registers: bit n is the register that ModRM and REX number n.
using ReadRegisters = std::uint32_t;
inline constexpr unsigned kStackPointer = 4, kFramePointer = 5;

// The status flags, as their bits of RFLAGS: CF, PF, AF, ZF, SF, OF.
using ReadFlags = std::uint32_t;
inline constexpr ReadFlags kCarryFlag = 1U << 0, kZeroFlag = 1U << 6,
                           kStatusFlags =
                               kCarryFlag | 1U << 2 | 1U << 4 | kZeroFlag | 1U << 7 | 1U << 11;

// Where execution goes after the instruction.
enum class ReadFlow : std::uint8_t {
  next,
  jump,           // to the target only
  conditional,    // to the target or on; loops and xbegin too
  call,           // to the target, and back
  indirect_jump,  // register, memory or far pointer
  indirect_call,
  ret,   // ret, iret, sysret
  trap,  // an instruction that exists to stop the program
};

// Operations that proofs know by name.
enum class Operation : std::uint8_t {
  other,
  nop,  // 90 and 0f 1f: no effect whatever their operand
  lea,
  mov,
  movzx,
  cmp,
  test,
  bit_or,
  bit_xor,
  add,
  sub,
  sbb,
  push,
  pop,
  leave,
  setcc,  // but setne
  setne,
  stc,
  clc,
  je,
  jne,
  jrcxz,
  xchg,
  endbr,
};

struct ReadOperand {
  enum class Kind : std::uint8_t { none, registr, memory, immediate, other } kind{};
  bool read{}, written{};
  unsigned bits{};
  // A general purpose register, 0-15; 16 for every other register.
  unsigned reg{};
  bool high_byte{};  // %ah and its like
  std::int64_t immediate{};
};

struct ReadMemory {
  std::optional<unsigned> base, index;  // 0-15
  bool vector_index{};                  // the index is a vector of addresses
  unsigned scale{1};
  std::int64_t displacement{};
  unsigned bytes{};  // that are accessed; 0 for lea, nop and what is no access
  bool segment{};    // relative to fs or gs
  bool address32{};
  // The operand's address where the instruction itself tells it: rip-relative, or without
  // registers.
  std::optional<VirtAddr> address;
};

// A field that counts from the instruction's end: displacement of a branch or of a rip-relative
// operand.
struct RelativeField {
  unsigned at{};
  unsigned width{};
};

struct X86Reading {
  VirtAddr address;
  Size size;
  ReadFlow flow{};
  std::optional<VirtAddr> target;  // of a direct branch
  Operation operation{};
  std::uint16_t mnemonic{};  // Zydis's number
  bool prefixed{};           // lock, rep, repne, segment or address-size prefix
  unsigned opcode_at{};      // bytes before the opcode; a lock prefix may be jumped over
  bool locked{};
  std::array<ReadOperand, 5> operands{};  // those that assembly shows
  unsigned operand_count{};
  std::optional<ReadMemory> memory;  // the operand with a ModRM byte, or a moffs
  std::optional<RelativeField> branch_field, rip_field;
  // Explicit, implicit and hidden ones. A write that leaves a part of the register as it was, or
  // that may not happen, counts as a read too.
  ReadRegisters reads{}, writes{};
  ReadFlags flags_read{}, flags_written{};

  [[nodiscard]] VirtAddr end() const { return {address.value + size.value}; }
  [[nodiscard]] bool ends_block() const {
    return flow == ReadFlow::jump || flow == ReadFlow::indirect_jump || flow == ReadFlow::ret ||
           flow == ReadFlow::trap;
  }
  [[nodiscard]] bool is_call() const {
    return flow == ReadFlow::call || flow == ReadFlow::indirect_call;
  }
  [[nodiscard]] std::span<const ReadOperand> shown() const {
    return std::span(operands).first(operand_count);
  }
  // The only immediate that assembly shows, sign-extended from the first operand's width.
  [[nodiscard]] std::optional<std::int64_t> immediate() const;
  // The general purpose register that stands in the operand's place; nothing for %ah and its like.
  [[nodiscard]] std::optional<unsigned> register_at(unsigned operand) const;
};

// The instruction that `bytes` starts with; nothing where Zydis knows none.
[[nodiscard]] std::optional<X86Reading> read_x86(ByteView bytes, VirtAddr address);
// The one at an address of the file.
[[nodiscard]] std::optional<X86Reading> read_x86(const ElfFile& file, VirtAddr address);

// Do the two do the same, each at its own address: is every byte the same but for the relative
// fields, and do these lead to the same places? A branch may have a displacement of another width.
[[nodiscard]] bool same_effect(const X86Reading& a, ByteView a_bytes, const X86Reading& b,
                               ByteView b_bytes);
// The same, but for where a direct branch leads.
[[nodiscard]] bool same_but_target(const X86Reading& a, ByteView a_bytes, const X86Reading& b,
                                   ByteView b_bytes);

}  // namespace reprobe
