// Where the addresses of counters go in a function, followed forwards over all ways until nothing
// changes: in which registers and words of the frame they may be before each instruction, and which
// of the instructions read a counter through one. x86-64 only.
//
// It takes for granted what a program that was compiled from sys/sdt.h's macros does: the address of
// a counter is taken for checks and for the operand "m"(semaphore) of a probe. Left in a register
// that a callee or the caller may read, it is of no use any more. An instruction that reads the
// register for something else reads the other value that may be in it there; where there is no
// other, the address is used for more than checks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

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
  std::vector<VirtAddr> origins;     // instructions whose address arrives at a check
};

// `operands`: those in the function, by address. `sites`: of each counter's probes, ascending.
[[nodiscard]] CounterFlow follow_counters(const ElfFile& file, const CodeRanges& ranges,
                                          const FunctionFlow& flow,
                                          std::span<const CounterOperand> operands,
                                          std::span<const std::vector<VirtAddr>> sites);

}  // namespace reprobe
