// The program headers of a file that gained an index.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/notes/index.hpp"

namespace reprobe {

// Rule verify-segment: each header of the input means what it did, at most a PT_LOAD that is not
// writable has grown over the index, and new are at most a PT_NOTE and a PT_LOAD that hold it.
void compare_index_segments(const ElfFile& before, const ElfFile& after, const IndexPlace& index,
                            std::vector<Finding>& out);

}  // namespace reprobe
