// What a result holds in the memory that the input has not.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/byte_ranges.hpp"

namespace reprobe {

// `contents`: bytes of the result's file that somebody has compared. With them may stand there the
// program header table, and what made room for it; the new segment begins and ends with one of
// these, and between them are zeros and int3. Rule verify-segment.
void compare_new_memory(const ElfFile& before, const ElfFile& after,
                        const std::vector<Range>& contents, std::vector<Finding>& out);

}  // namespace reprobe
