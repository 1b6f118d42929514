// Proves that `reprobe relativize` changed only what it says: there is a new note in memory that is
// not writable, which says what the notes say; the program headers lead to it, and everything else
// is what it was.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// Has the result an index, and the input none?
[[nodiscard]] bool gained_index(const ElfFile& before, const ElfFile& after);

// Rules: verify-index, verify-segment, verify-section, verify-bytes. Empty: proven.
[[nodiscard]] std::vector<Finding> compare_index(const ElfFile& before, const ElfFile& after);

}  // namespace reprobe
