// Proves that `reprobe guards` changed only what it says. To the sites: every check of a counter
// whose note names it no more looks at the first site, none is left, and the code does what it did
// else. On: the counters are 1, and nothing else has changed. The record gives the original back.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// Was the file written by `reprobe guards`?
[[nodiscard]] bool has_guards(const ElfFile& file);

// Rules: verify-code, verify-undo, verify-bytes, verify-segment, verify-unwind, verify-probe-lost,
// verify-probe-added. Empty: proven.
[[nodiscard]] std::vector<Finding> compare_guards(const ElfFile& before, const ElfFile& after);

}  // namespace reprobe
