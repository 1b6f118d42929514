// Where the addresses of counters go in a function, followed forwards over all ways until nothing
// changes: in which registers and words of the frame they may be before each instruction, and which
// of the instructions read a counter through one. x86-64 only.
//
// What a call does to registers is read from the callee's code (code/callees.hpp): where it may
// write a register, the address may be there and may not. Words of the frame are known by their
// distance from the stack pointer that the function was entered with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/callees.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/verify/counter_references.hpp"

namespace reprobe {

// An access through a register that may hold counters' addresses.
struct PointerCheck {
  X86Reading code;
  std::vector<std::size_t> counters;  // ascending
  bool maybe_other{};                 // the register may hold another address too
};

struct CounterFlow {
  std::vector<PointerCheck> checks;  // by address
  std::vector<UnknownUse> unknown;
  std::vector<VirtAddr> origins;  // instructions whose address arrives at a check
};

// `operands`: those in the function, by address. `sites`: of each counter's probes, ascending.
[[nodiscard]] CounterFlow follow_counters(const ElfFile& file, const CodeRanges& ranges,
                                          Callees& callees, const FunctionFlow& flow,
                                          std::span<const CounterOperand> operands,
                                          std::span<const std::vector<VirtAddr>> sites);

}  // namespace reprobe
