// crtstuff.c's (de)register_tm_clones: start-up code that computes the length of an empty table at
// the end of .data as the distance of its address from itself. Where .probes begins there, that is
// a counter's address, and no use of the counter. These functions often have neither symbols nor
// FDEs, so they are known by their bytes.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// Does the operand field (of 4 bytes) at `field` belong to such code? All its operands refer to one
// address then, and what depends on it is never reached.
[[nodiscard]] bool is_start_code_operand(const ElfFile& file, VirtAddr field);

}  // namespace reprobe
