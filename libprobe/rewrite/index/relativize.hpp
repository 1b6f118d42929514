// Plans `reprobe relativize`: a loaded index of the probes, .note.reprobe, in a file that has none,
// or another one in the place of an index that is out of date.
#pragma once

#include <functional>

#include "libprobe/notes/index.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/layout.hpp"

namespace reprobe {

struct RelativizeOptions {
  // Which probes the index has; all where it is empty.
  std::function<bool(const Probe&)> selected;
};

struct RelativizePlan {
  Plan plan;               // empty: the file has that index
  ProbeIndex index;        // of the result
  VirtAddr address;        // of the index note in the result
  bool renewed{};          // the file had an index that said something else
  std::size_t dangling{};  // notes that are left out
};

// Errors: refused (no room, notes that could not be given back, an index of another version),
// malformed (an index that contradicts itself), internal.
[[nodiscard]] Result<RelativizePlan> plan_relativize(const ElfFile& file, const ProbeFile& probes,
                                                     const RelativizeOptions& options);

}  // namespace reprobe
