// Returns that are jumps: code pushes an address, or writes it over its return address, and
// returns to it. Retpolines are such code (GCC -mindirect-branch, LLVM -mretpoline), in thunks of
// their own or in line. Told by how far the stack pointer is from where the function was entered
// with it, followed forward over all paths. x86-64 only.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/x86_operands.hpp"

namespace reprobe {

struct StackJump {
  std::size_t at{};             // index in the code: a ret, or a jump to a thunk
  std::optional<unsigned> reg;  // that holds the address; nothing: not known
  std::size_t read_at{};        // the instruction that reads it
};

// The returns of a piece of code that are jumps, by index. `entered_by_calls`: its first
// instruction is entered with the return address on top of the stack.
[[nodiscard]] std::vector<StackJump> returns_that_jump(std::span<const CodeInstruction> code,
                                                       bool entered_by_calls);

// Does a function that is entered by calls write over the address that it returns to, or take it
// off the stack?
[[nodiscard]] bool changes_return_address(std::span<const CodeInstruction> code);

struct JumpThunk {
  std::optional<unsigned> reg;  // it jumps to the address in this register
};
// Code of a few instructions without a condition that returns to another address than its caller's;
// nothing where the code at the address is no such.
[[nodiscard]] std::optional<JumpThunk> jump_thunk(const CodeRanges& ranges, VirtAddr address);

}  // namespace reprobe
