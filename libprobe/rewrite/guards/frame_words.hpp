// Words of a function's frame, named by their distance from the stack pointer that the function was
// entered with, so that an operand relative to %rsp and one relative to %rbp are the same word.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/code/callees.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"

namespace reprobe {

struct FrameWord {
  // 0: counts from %rsp at the function's entry; otherwise from what the instruction at this
  // address has put into %rsp (an aligned or a variable frame).
  std::uint64_t base{};
  std::int64_t offset{};
  auto operator<=>(const FrameWord&) const = default;
};

class FrameWords {
 public:
  // `flow` and what else is passed outlive this.
  FrameWords(const CodeRanges& ranges, const FunctionFlow& flow, Callees& callees);

  // Where the operand lies, if it counts from %rsp or %rbp alone.
  [[nodiscard]] std::optional<FrameWord> operand(const CodeInstruction& code) const;
  // %rsp before the instruction.
  [[nodiscard]] std::optional<FrameWord> stack_pointer(VirtAddr at) const;

  // Why a word may be reached by more than the operands that name it, "" where none is: an address
  // of the frame is put elsewhere, indexed, or not known.
  [[nodiscard]] const std::string& shared() const { return shared_; }

 private:
  struct State {
    std::optional<FrameWord> rsp, rbp;
    bool operator==(const State&) const = default;
  };

  void arrive(VirtAddr at, const State& state);
  void step(const CodeInstruction& code, const State& before);
  State after(const CodeInstruction& code, State state) const;
  void look_for_sharing(const CodeInstruction& code, const State& before);
  [[nodiscard]] std::optional<CodeInstruction> decode(VirtAddr at) const;

  const CodeRanges& ranges_;
  const FunctionFlow& flow_;
  Callees& callees_;
  std::map<std::uint64_t, State> states_;  // before the instruction there
  std::vector<VirtAddr> open_;
  std::string shared_;
  bool had_frame_pointer_{};
};

// push, pop, sub $n,%rsp, add $n,%rsp, lea n(%rsp),%rsp: bytes by which %rsp is lower then.
[[nodiscard]] std::optional<std::int64_t> lowers_stack(const CodeInstruction& code);
[[nodiscard]] bool is_push(const CodeInstruction& code);
[[nodiscard]] bool is_pop(const CodeInstruction& code);

}  // namespace reprobe
