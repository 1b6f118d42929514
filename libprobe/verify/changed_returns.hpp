// Does a function return to another place than behind the call? verify's own reading of it.
#pragma once

#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// The function that starts at the address writes over the address on top of the stack that it was
// entered with, or takes it off, before it calls another. Jumps out of it are not followed. x86-64.
[[nodiscard]] bool changes_its_return(const ElfFile& file, const CodeRanges& ranges,
                                      VirtAddr function);

}  // namespace reprobe
