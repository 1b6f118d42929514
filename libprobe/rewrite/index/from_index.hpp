// Writes the notes that a strip took from a file anew, from its index.
#pragma once

#include <vector>

#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/fix.hpp"

namespace reprobe {

struct FromIndexPlan {
  // As plan_fix() gives it; a repair of the rule notes-stripped for each note that is written.
  FixPlan fix;
  // Those that are written, as a reader of the output finds them, then those whose code is not in
  // the file, which are not: fix.removed. note.bytes is empty.
  std::vector<Probe> probes;
};

// Are the notes gone, and is there an index to write them from?
[[nodiscard]] bool can_restore_from_index(const ElfFile& file);

// A new .note.stapsdt at the end of the file, .stapsdt.base where that is gone, and then what
// plan_fix() does. Notes whose sites do not hold what the index says are left out: refused, or
// removed where their code is not in the file. Errors: refused (no section headers, an index that
// is not of this file's addresses, of another version), malformed, internal.
[[nodiscard]] Result<FromIndexPlan> plan_from_index(const ElfFile& file);

}  // namespace reprobe
