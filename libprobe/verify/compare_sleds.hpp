// Proves that `reprobe sled` changed only what it says: the code still does what it did, every
// probe is found at its sled, the rest of what is loaded is untouched, and the record in the file
// gives the original back.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// Was the file written by `reprobe sled`?
[[nodiscard]] bool has_sleds(const ElfFile& file);

// Rules: verify-code, verify-undo, verify-bytes, verify-segment, verify-unwind, verify-probe-lost,
// verify-probe-added. Empty: proven. For x86-64.
[[nodiscard]] std::vector<Finding> compare_sleds(const ElfFile& before, const ElfFile& after);

}  // namespace reprobe
