// Runs of instructions that a jump can replace: in which no byte after the first is a target, and
// nothing must stay where it is. What was taken for other sleds is not free.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libprobe/code/flow.hpp"

namespace reprobe {

// What earlier sites of the file were given.
struct TakenCode {
  std::unordered_set<std::uint64_t> planned;    // sites
  std::unordered_set<std::uint64_t> reaimed;    // targets whose branches go to a stub now
  std::map<std::uint64_t, std::uint64_t> used;  // begin -> end of every replaced range

  [[nodiscard]] bool is_free(VirtAddr begin, VirtAddr end) const;
};

// Why a tactic does not serve a site.
struct Reason {
  std::string words;   // stable
  std::string detail;  // with addresses; may be empty
};

// Indices into FunctionFlow::code.
struct Run {
  std::size_t first{};
  std::size_t last{};  // inclusive; the padding behind it is not counted
  VirtAddr end;        // of the replaced bytes, padding included
  bool falls_through{};
  std::vector<std::size_t> reaimed;  // instructions in it that are targets
};

// How a jump in place of a run fares where a breakpoint is set on an instruction of the original,
// which writes int3 into its operand.
enum class Operand {
  whole,     // no instruction started there
  low_byte,  // one did in the lowest byte, which the stub's place can make int3
  second,    // likewise the second byte, if the stubs reach that far
  broken,    // the jump would lead elsewhere
};

// May a run have targets behind its first byte?
enum class Targets {
  none,
  reaimed,  // those that only direct branches of the function lead to: they are aimed at the stub
};

class RunFinder {
 public:
  // `sites`: those of the function that get sleds, ascending. All outlive the finder.
  RunFinder(const FunctionFlow& flow, std::span<const VirtAddr> sites, const TakenCode& taken)
      : flow_(flow),
        sites_(sites),
        taken_(taken),
        dead_(flow.dead_filler()),
        unreached_(flow.unreached_filler()) {}

  static constexpr std::uint64_t kLongest = 24;  // bytes: more never helps a 5-byte jump

  [[nodiscard]] VirtAddr start(std::size_t i) const { return flow_.code[i].address; }
  [[nodiscard]] VirtAddr end(std::size_t i) const { return flow_.code[i].end(); }
  [[nodiscard]] VirtAddr start(const Run& run) const { return start(run.first); }

  [[nodiscard]] bool is_wanted_site(VirtAddr address) const;
  [[nodiscard]] bool is_planned(VirtAddr site) const { return taken_.planned.contains(site.value); }
  // May control arrive there from elsewhere? Another site is none: its own sled is in the stub.
  [[nodiscard]] bool is_target(VirtAddr address) const;
  // Of a site: its nop stays, because its note will name it, or a sled has it already.
  [[nodiscard]] bool is_target_site(VirtAddr address) const;
  // In (begin, end).
  [[nodiscard]] std::optional<CodeTarget> target_inside(VirtAddr begin, VirtAddr end) const;
  // A byte behind the end of a block that nothing reaches, if the block ends before it.
  [[nodiscard]] bool is_padding(std::size_t i) const;
  // Indices of the direct branches to an address.
  [[nodiscard]] const std::vector<std::size_t>& branches_to(VirtAddr target);

  // Bit n: an instruction starts n bytes behind `at`, before `at` + size. Not padding, on which
  // nobody sets a breakpoint.
  [[nodiscard]] std::uint8_t boundaries(VirtAddr at, std::uint64_t size) const;
  // Of a jump of `size` bytes, 5 or 2.
  [[nodiscard]] Operand operand(VirtAddr at, std::uint64_t size) const;

  // A run of at least `size` bytes that starts with instruction `first` and holds `through`.
  [[nodiscard]] tl::expected<Run, Reason> from(std::size_t first, std::size_t through,
                                               std::uint64_t size, Targets targets);

  // Tries the runs that hold instruction `at`, from the one that starts with it backwards: the
  // fewer instructions move, the better. Gives nothing where `try_run` took one, else why the first
  // did not serve.
  template <typename Try>
  std::optional<Reason> each(std::size_t at, std::uint64_t size, Targets targets, Try try_run) {
    std::optional<Reason> first_reason;
    for (std::size_t first = at;; --first) {
      if (start(at).value - start(first).value > kLongest) break;
      const auto run = from(first, at, size, targets);
      if (run && try_run(*run)) return std::nullopt;
      if (!first_reason) first_reason = run ? not_written(at) : run.error();
      // Control must come from the instruction before, and only from there.
      if (first == 0 || is_target(start(first)) || flow_.code[first - 1].ends_block()) break;
    }
    return first_reason;
  }

 private:
  [[nodiscard]] bool can_reaim(std::size_t i);
  [[nodiscard]] bool holds_branch_to_own_target(const Run& run, std::size_t& target);
  void extend_into_padding(Run& run, std::uint64_t wanted_end) const;
  [[nodiscard]] Reason not_written(std::size_t at) const;
  [[nodiscard]] Reason target_reason(VirtAddr address) const;

  const FunctionFlow& flow_;
  std::span<const VirtAddr> sites_;
  const TakenCode& taken_;
  std::vector<bool> dead_, unreached_;                          // as FunctionFlow has them
  std::map<std::uint64_t, std::vector<std::size_t>> branches_;  // by target, once asked for
};

}  // namespace reprobe
