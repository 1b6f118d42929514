// Where the indirect jumps of one piece of code go. What compilers emit is told apart by where the
// jump's value comes from, followed backwards over all paths:
//  - it is a whole pointer: loaded from memory, returned by a callee, passed by the caller, taken
//    with lea. Such a pointer's value stands in the file as a relocation, a word or a
//    displacement, which find_references() finds, so the jump itself needs no decoding;
//  - it is a sum of a base and a 32-bit word: a jump table (GCC, LLVM with -fPIC), or the
//    difference of two labels. Its table is read. Where such a sum was kept in memory, as at -O0,
//    the jump's pointer is a whole one, and the sum is not found: a function that takes the address
//    of its own labels, and adds to what may be one, trusts no pointer from memory;
//  - anything else is not understood.
// Tables of whole addresses (jmp *table(,%rax,8)) are of the first sort.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/stack_returns.hpp"
#include "libprobe/code/x86_operands.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// How control may arrive at an instruction other than from the one before.
enum class Arrival : std::uint8_t {
  indirect,  // from an indirect jump of this code: case labels, labels whose address is taken
  unknown,   // from elsewhere: landing pads, other code
};

struct ArrivalPoint {
  VirtAddr address;
  Arrival how{};
};

struct CodePiece {
  const ElfFile* file{};
  std::span<const CodeInstruction> code;   // without gaps
  std::span<const ArrivalPoint> arrivals;  // by address; direct branches of `code` need not be in
  // A caller's registers are what arrives at the first instruction; false: the code may be the
  // cold part of a function, entered in its middle.
  bool entered_by_calls{};
  // This piece and the others of its function: addresses in them are labels.
  std::span<const CodeRange> parts;
  // May a table lead to the address? Asked where the length of a table is not known, for its end.
  std::function<bool(VirtAddr)> may_be_case;
  // Returns and jumps to thunks that are indirect jumps, by index.
  std::span<const StackJump> stack_jumps{};
  // Addresses inside the function stand in data: IndirectJumps::adds_to_loaded is asked for.
  bool labels_in_data{};
};

struct TableTarget {
  VirtAddr address;
  VirtAddr jump;
};

struct IndirectJumps {
  std::vector<TableTarget> targets;      // of all tables, in any order
  std::vector<VirtAddr> not_understood;  // jumps
  std::vector<VirtAddr> through_memory;  // jumps that trust a pointer from memory or a caller
  std::vector<VirtAddr> pointer_tables;  // tables of whole addresses that jumps read
  std::vector<CodeRange> tables;         // the words of the tables that were read
  // The piece computes addresses from its function's labels and may keep them in memory: then
  // through_memory of all pieces is not understood either.
  bool adds_to_labels{};
  // It computes from pointers that it loads: from labels, if those stand in data.
  bool adds_to_loaded{};
};

[[nodiscard]] IndirectJumps follow_indirect_jumps(const CodePiece& piece);

}  // namespace reprobe
