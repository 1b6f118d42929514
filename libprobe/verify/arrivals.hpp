// Direct branches of the original into code that the result has changed, found by verify itself:
// the functions that FDEs and symbols describe are read from their starts on with Zydis.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

struct ArrivingBranch {
  VirtAddr source;  // of the instruction
  VirtAddr target;
};

// All whose target is a changed byte, or so near one that it may be in the same instruction. Only
// functions with bytes that look like such a
// branch are read.
[[nodiscard]] std::vector<ArrivingBranch> find_arrivals(const ElfFile& before,
                                                        const ElfFile& after);

}  // namespace reprobe
