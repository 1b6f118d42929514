// The bytes between two functions.
#pragma once

#include "libprobe/elf/file.hpp"

namespace reprobe {

// Do the bytes from `begin` to `end` do nothing: zeros, int3 and nops, as linkers and assemblers
// align functions with? No execution is there, so that nobody unwinds from there.
[[nodiscard]] bool is_filler(const ElfFile& file, VirtAddr begin, VirtAddr end);

}  // namespace reprobe
