// From facts to verdicts. A live note must never be called dangling, so each rule below is either
// a proof or it only lowers `live` to `ambiguous`. docs/verdicts.md lists the rules.
#pragma once

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Sets verdict, evidence and aliases of every probe from the facts of all.
void judge(ProbeFile& file, const ElfHeader& header);

}  // namespace reprobe
