// Where the address of a counter goes that an instruction has put in a register.
//
// What this takes for granted: the program itself never uses a counter's address. Compilers take it
// for their checks and for the operand "m"(semaphore) of a probe's own asm statement (sys/sdt.h),
// keep it in registers and in stack slots, and let it lie there once it is of no use. So
//  - what a callee or a caller may find in its registers is left over, where the address was taken
//    for a check or a probe;
//  - an instruction that reads the register for something else reads another value, where it finds
//    one there on another path: the path that was followed is none that the program takes, as
//    behind a call that does not return. Where there is no other value, nothing is taken for
//    granted: the address is then used for more than checks.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"

namespace reprobe {

struct PointerUses {
  std::vector<VirtAddr> checks;  // instructions that read two bytes there; each once
  bool at_site{};                // it is there at a probe of the counter
  bool passed_on{};              // it is in a register that a callee or the caller may read
  std::string reason;            // what else is done with it, in stable words; "" for nothing
  VirtAddr at;                   // where
};

struct PointerQuestion {
  const CodeInstruction* origin{};  // puts the address in `reg`
  unsigned reg{};
  std::span<const VirtAddr> sites;  // of the counter's probes, ascending
  // May the register hold another value before the instruction too?
  std::function<bool(const CodeInstruction&, unsigned reg)> may_hold_another;
  // Instructions that may still be looked at, for all questions about a file; reduced by what was.
  std::uint64_t* budget{};
};

// Until every copy is overwritten or dead.
[[nodiscard]] PointerUses follow_pointer(const CodeRanges& ranges, const FunctionFlow& flow,
                                         const PointerQuestion& question);

}  // namespace reprobe
