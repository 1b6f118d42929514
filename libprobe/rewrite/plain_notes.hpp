// Notes that another step may rely on: each as every tracer reads it.
#pragma once

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// The one section of notes, which is not loaded. Error refused: there is none, or the notes are not
// understood whole: several sections, a loaded one, notes that are not canonical, sites in doubt,
// bytes that something else claims too.
[[nodiscard]] Result<const Section*> plain_notes(const ElfFile& file, const ProbeFile& probes);

}  // namespace reprobe
