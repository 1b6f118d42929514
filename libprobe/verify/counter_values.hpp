// The counter that a note of the result may name besides the one that it named before: what a
// repair may write there, from the file's symbols and segments.
#pragma once

#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// One for each probe: the address that its symbol PROVIDER_NAME_semaphore proves, where the note
// names no counter, one that cannot be, or another one than the probe's other notes; 0 where there
// is nothing that could be a counter and no symbol says better; otherwise what the note names.
[[nodiscard]] std::vector<VirtAddr> proven_counters(const ElfFile& file, const ProbeFile& probes);

}  // namespace reprobe
