// Which way each site becomes a sled, decided function by function before any byte is written. The
// result is data: what is replaced where, and what the stubs hold.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/flow.hpp"
#include "libprobe/rewrite/sled/runs.hpp"

namespace reprobe {

// slot: as nop10, with a test of a word of data for a runtime in the process behind it.
enum class SledKind { nop10, nop5, slot };

// In the order in which the planner tries them.
enum class Tactic {
  in_place,     // the site's own nops hold the sled; no code moves
  call_target,  // the call behind the site goes to the stub, which jumps to the callee
  jump_target,  // the jump behind the site goes to the stub
  // `jmp stub` over a run of instructions, which the stub holds. Where a run without a target
  // inside does not serve, the branches to that target are aimed at the stub too.
  displace,
  hop,  // a short jump to a `jmp stub` in a hole nearby
};
[[nodiscard]] const char* to_string(Tactic tactic);

// A step of another stub, as indices in SledPlan::stubs and StubPlan::steps.
struct StubPlace {
  std::size_t stub{};
  std::size_t step{};
};

// What a stub does, in order.
struct StubStep {
  CodeInstruction instruction;     // displaced; of a sled the instruction at its site
  std::optional<VirtAddr> sled;    // a sled for this site; a nop at the site is dropped for it
  bool guarded{};                  // the sled protects the red zone
  bool keeps_flags{};              // of a slot: the flags are used behind the site
  std::optional<StubPlace> aim{};  // of a branch: it goes to that step, of a stub before this one
  [[nodiscard]] bool keeps_instruction() const {
    return !sled || instruction.kind != InstructionKind::nop;
  }
};

struct StubPlan {
  std::vector<StubStep> steps;
  std::optional<VirtAddr>
      resume;            // where its last jump goes; nothing: its last step ends the block
  std::int64_t lower{};  // bytes by which %rsp is lower in the stub: 8 behind a call
};

// Bytes of the original that are replaced.
struct Patch {
  enum class Form {
    jump,      // jmp rel32 to the stub; int3 behind it
    relative,  // the 4 bytes of a branch's operand: a step of the stub
    hop,       // jmp rel8 to `hole`; int3 behind it
    sled,      // the sled itself, nops behind it
    nops,      // of an instruction that moved, before the jump: nops that lead on to it
  } form{};
  VirtAddr at{};
  Size size{};
  VirtAddr hole{};     // of a hop
  std::size_t stub{};  // index in SledPlan::stubs; of Form::jump and Form::relative
  std::size_t step{};  // Form::relative: where in the stub
  // Bit n: an instruction of the original starts n bytes behind `at`, inside the new instruction's
  // operand. A breakpoint that is set there changes the operand unless it is int3 already.
  std::uint8_t boundaries{};
  std::size_t owner{};  // Form::jump and Form::hop: the stub of the site for which it is
};

struct PlannedSite {
  VirtAddr site;
  Tactic tactic{};
  std::optional<std::size_t> stub;  // where its sled is; nothing: in place, at the site itself
};

struct RefusedSite {
  VirtAddr site;
  std::string reason;  // stable words
  std::string detail;  // with addresses; may be empty
};

struct SledPlan {
  std::vector<PlannedSite> sites;    // by address
  std::vector<RefusedSite> refused;  // by address
  std::vector<StubPlan> stubs;
  std::vector<Patch> patches;  // no two overlap
};

// What the planner asks about things that are not control flow.
struct SledRules {
  SledKind kind{SledKind::nop10};
  // Must the sled at the site keep its tracer out of the red zone? Asked for nop5 only.
  std::function<bool(const FunctionFlow&, VirtAddr site)> needs_guard;
  // May the flags be used behind the site? Asked for slots only.
  std::function<bool(const FunctionFlow&, VirtAddr site)> uses_flags{};
  // Can the notes of the site be corrected for a stack pointer that is this much lower?
  std::function<bool(VirtAddr site, std::int64_t lower)> arguments_fit;
  // Only what breakpoints on the original's instructions leave intact.
  bool debuggable{};
  // Can the unwind rows of such a stub be stated?
  std::function<bool(const StubPlan&)> unwinds;
  // Does an unwinder find the same row at both addresses?
  std::function<bool(VirtAddr, VirtAddr)> same_row;
};

// Plans the sites of one function after another; sites that share an instruction are one.
class SledPlanner {
 public:
  explicit SledPlanner(SledRules rules) : rules_(std::move(rules)) {}

  // `sites`: those in the function, ascending, each once.
  void add(const FunctionFlow& flow, std::span<const VirtAddr> sites);
  // Stubs so far: those of a function follow those of the functions before it.
  [[nodiscard]] std::size_t stubs() const { return plan_.stubs.size(); }
  void refuse(VirtAddr site, std::string reason, std::string detail = {});

  // Sorted by address.
  [[nodiscard]] SledPlan finish() &&;

 private:
  friend class FunctionPlanner;

  SledRules rules_;
  SledPlan plan_;
  std::map<std::uint64_t, RefusedSite> refused_;  // by site
  TakenCode taken_;
};

}  // namespace reprobe
