// Plans `reprobe guards`: the checks of a probe's counter look at its site instead, or the counter
// is preset so that they always find it raised.
// read -> counters -> references -> uses -> plan -> room -> emit -> notes -> undo record.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/plan/plan.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/guards/counters.hpp"
#include "libprobe/rewrite/guards/exported.hpp"
#include "libprobe/rewrite/guards/uses.hpp"
#include "libprobe/rewrite/index/renew.hpp"

namespace reprobe {

enum class GuardsTo { site, on };

struct GuardsOptions {
  GuardsTo to{GuardsTo::site};
  std::function<bool(const Probe&)> selected;  // all where it is empty
  ExportedCounters exported{};                 // of GuardsTo::site
};

// One check, or with --to on one counter.
struct GuardOutcome {
  std::size_t counter{};  // the first of those that it looks at
  VirtAddr at;            // of the instruction or the word; 0: of none that is known
  std::string what;       // "compare", "load", "merge"; "counter"; "unknown"
  std::string tactic;     // "in-place" or "stub"; "" where it is left as it is
  std::string reason;     // why, in stable words
};

struct GuardsResult {
  Plan plan;  // empty: nothing to do
  std::vector<GuardCounter> counters;
  std::vector<GuardOutcome> outcomes;  // by counter, then by address
  bool already{};                      // the same was done before: nothing was planned
  RenewedIndex index;                  // what became of the file's index
};

// Errors: refused (not a linked file, with GuardsTo::site not for x86-64; the notes cannot be
// changed; the other of the two was done before; no room for the stubs), internal.
[[nodiscard]] Result<GuardsResult> plan_guards(const ElfFile& file, const ProbeFile& probes,
                                               const GuardsOptions& options);

// The section with the record; nullptr where `reprobe guards` did nothing to the file.
[[nodiscard]] const Section* guards_record(const ElfFile& file);

}  // namespace reprobe
