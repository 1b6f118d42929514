// Probes that share an instruction.
#pragma once

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Sets alias_count and alias_of of every probe that is not dangling, from sites and verdicts.
void list_aliases(ProbeFile& file);

}  // namespace reprobe
