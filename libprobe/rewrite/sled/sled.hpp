// Plans `reprobe sled`: every live site gets a patchable sled, and its note moves there.
// read -> flow -> plan -> room -> emit -> unwind tables -> notes -> undo record.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "libprobe/plan/plan.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/index/renew.hpp"
#include "libprobe/rewrite/sled/planner.hpp"

namespace reprobe {

enum class GuardMode {
  automatic,  // where the function may keep data in the red zone
  always,
  never,
};

struct SledOptions {
  SledKind kind{SledKind::nop10};
  GuardMode guard{GuardMode::automatic};
  // No sled where a breakpoint on an instruction of the original would break the way to it.
  bool debuggable{};
  // Which probes get sleds; all where it is empty. A site gets one where all of its probes do.
  std::function<bool(const Probe&)> selected;
};

struct SledResult {
  Plan plan;       // empty: nothing to do
  SledPlan sleds;  // what became of each site; the notes' new locations are in `moved`
  std::map<std::uint64_t, VirtAddr> moved;  // old site -> sled
  std::set<VirtAddr> unsafe;                // sites where such a breakpoint does
  bool already{};                           // the file has sleds of this tool: nothing was planned
  RenewedIndex index;                       // what became of the file's index
};

// Errors: refused (not a linked x86-64 file, notes that cannot follow, no room), internal.
[[nodiscard]] Result<SledResult> plan_sleds(const ElfFile& file, const ProbeFile& probes,
                                            const SledOptions& options);

}  // namespace reprobe
