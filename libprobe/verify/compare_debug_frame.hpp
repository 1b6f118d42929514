// The records that a result adds to .debug_frame, which debuggers read beside .eh_frame.
#pragma once

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// Rule verify-unwind: the section of the result has from `from` on, where a record begins, one that
// says of code of the input what its .eh_frame does not say.
void compare_debug_frame(const ElfFile& before, const ElfFile& after, const Section& section,
                         Size from, std::vector<Finding>& out);

}  // namespace reprobe
