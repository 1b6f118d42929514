// Gathers what the file says about each site: place, bytes, function, boundary, relocations.
#pragma once

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Fills site_offset, section and facts of every probe.
void gather_facts(const ElfFile& file, ProbeFile& probes);

}  // namespace reprobe
