// Where the address of a counter goes that an instruction has put in a register, and what may be in
// a register where a check reads through it. Registers and words of the frame are followed alike.
//
// Behind a call of a function whose code leaves a register alone, the register still holds the
// address, whatever the ABI says of it. Where the callee writes it, or is not seen, it may and may
// not: what reads it then for something else means the callee's result, but a check through it
// cannot be told from one of another address.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/callees.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/value_origin.hpp"
#include "libprobe/rewrite/guards/frame_words.hpp"

namespace reprobe {

struct AddressUses {
  std::vector<VirtAddr> checks;  // instructions that read two bytes there; each once
  bool at_site{};                // it is there at a probe of the counter
  // Where a callee or the caller may read it; 0: nowhere.
  VirtAddr passed_at;
  // Where it stands in %rdx as the function returns; 0: nowhere. That is a result only where %rax is
  // its first half (System V ABI, x86-64, 3.2.3).
  VirtAddr left_at;
  std::string reason;  // what else is done with it, in stable words; "" for nothing
  VirtAddr at;         // where
};

// What both directions read of a function; what is passed outlives them.
struct AddressCode {
  const CodeRanges& ranges;
  const FunctionFlow& flow;
  Callees& callees;
  const FrameWords& frame;
  OriginFinder& finder;  // of flow.code
  // Instructions that may still be looked at, for all questions about a file; reduced by what was.
  std::uint64_t& budget;
};

// From behind `origin`, which puts the address in `reg`, until every copy is overwritten or dead.
// `sites`: of the counter's probes, ascending. `distance`: it is one from the GOT, which checks add
// to another register.
[[nodiscard]] AddressUses follow_address(const AddressCode& code, const CodeInstruction& origin,
                                         unsigned reg, std::span<const VirtAddr> sites,
                                         bool distance);

// Does the check use the register for its operand, alone or, where it holds a distance, beside
// another one?
[[nodiscard]] bool is_check_through(const CodeInstruction& code, unsigned reg, bool distance);

// Does an instruction of flow.code, by its index, put the right value in the register?
using RightOrigin = std::function<bool(std::size_t at, unsigned reg)>;

// Does `reg` hold, before the instruction at `at` and on every path to it, what an instruction that
// is `right` has put there?
[[nodiscard]] bool comes_from(const AddressCode& code, VirtAddr at, unsigned reg,
                              const RightOrigin& right);

}  // namespace reprobe
