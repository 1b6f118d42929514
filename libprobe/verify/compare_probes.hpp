// The probes of a repaired file: each that was kept is there, and none that the input has not.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/verify/compare.hpp"
#include "libprobe/verify/section_match.hpp"

namespace reprobe {

// `probes` are those of `before`, `after` those of the result.
void compare_probes(const ElfFile& before, const ProbeFile& probes, const SectionMatch& match,
                    const CompareOptions& options, const ProbeFile& after,
                    std::vector<Finding>& out);

// Notes that were gone: every probe of the result is one of the source's, a debug file or the
// index, in its order. `counters`: what repairs make of its semaphores. `doubtful`: probes that are
// in doubt may stand on something else than a nop. (What a stripped file leaves in doubt the source
// may have decided.)
void compare_restored(const ProbeFile& source, const std::vector<VirtAddr>& counters, bool doubtful,
                      const ProbeFile& after, std::vector<Finding>& out);

// compare_restored() with the index of `before`.
void compare_with_index(const ElfFile& before, const ProbeFile& now, std::vector<Finding>& out);

}  // namespace reprobe
