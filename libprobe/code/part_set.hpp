// The parts of one function, as FunctionParts finds them: their code, decoded once, and how control
// arrives in them.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/jump_table.hpp"

namespace reprobe {

struct Part {
  CodeRange range;
  std::vector<CodeInstruction> own;  // empty for the function itself, which the question holds
  std::span<const CodeInstruction> code;
  std::vector<ArrivalPoint> arrivals;  // by address
  bool entered_by_calls{};
  std::vector<StackJump> stack_jumps{};
};

class PartSet {
 public:
  // `budget`: what may still be decoded and read, in bytes. `callees`: of functions that are
  // called, whether they return elsewhere, once that is known. All outlive this.
  PartSet(const CodeRanges& ranges, std::uint64_t& budget, std::map<VirtAddr, bool>& callees)
      : ranges_(ranges), budget_(budget), callees_(callees) {}

  std::vector<Part> parts;  // the function itself first

  // Why not all is known; the first reason stays. Empty: nothing is missing.
  [[nodiscard]] const std::string& why_incomplete() const { return why_incomplete_; }
  void missing(std::string why);
  // False where the budget is spent.
  bool spend(std::uint64_t bytes);

  [[nodiscard]] Part* part_of(VirtAddr address);
  // The part that holds the address, decoded now where it is new; nullptr where it is no code that
  // is known. `address` is reached or left by a jump of the function.
  Part* reach(VirtAddr address);

  // The code of a range that is no part yet; empty where it does not decode. Valid until the next
  // call.
  std::span<const CodeInstruction> look_at(const CodeRange& range);
  std::span<const CodeInstruction> function_at(VirtAddr address);
  // The instruction that holds the byte; nullptr where the code there is not known.
  const CodeInstruction* holder_of(VirtAddr address);

  // Does the function that the instruction calls change the address it returns to? Data may stand
  // behind such a call.
  bool returns_elsewhere(const CodeInstruction& call);
  // Data among the code shift what is read behind them, up to where a branch leads to. Is the
  // instruction, one of `code`, one that execution comes to from the start of the code or from the
  // target of a branch without passing the end of a block?
  bool is_surely_read(std::span<const CodeInstruction> code, const CodeInstruction& instruction);

  // How control arrives at an address of a part.
  void arrive(VirtAddr address, Arrival how);

 private:
  const CodeRanges& ranges_;
  std::uint64_t& budget_;
  std::map<VirtAddr, bool>& callees_;
  std::string why_incomplete_;
  // The last code that was looked at.
  CodeRange looked_at_;
  std::vector<CodeInstruction> looked_at_code_;
};

// By address, each once; where it is both, not known wins.
void sort_arrivals(std::vector<ArrivalPoint>& arrivals);

}  // namespace reprobe
