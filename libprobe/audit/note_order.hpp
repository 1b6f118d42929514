// The order of the live notes. Compilers write the notes of an object in the order of its code, and
// linkers put objects one behind the other, so that the locations of live notes rise. A note that
// stands below the live ones before it, or above those behind it, is out of order: of a dropped
// section linkers write 0 plus the offset.
#pragma once

#include <vector>

#include "libprobe/audit/runs.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

enum class NoteOrder {
  unknown,       // no live note to compare with, or the order of this section's notes means nothing
  in_order,      // between the live notes before and behind it
  out_of_order,  // not between them
  far_away,  // not between them, and not near one either: hand-written notes may stand in another
             // order than their code, but near it
};

// One answer per probe; `unknown` for the dead ones (`dead[i]`) and for sites in functions that
// compilers put in sections of their own (main, constructors, cold parts). Notes inside a run of
// dead ones are compared, and no others with them.
[[nodiscard]] std::vector<NoteOrder> find_note_order(const std::vector<Probe>& probes,
                                                     const std::vector<bool>& dead,
                                                     const std::vector<DeadRun>& runs);

}  // namespace reprobe
