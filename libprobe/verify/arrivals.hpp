// What leads into code that the result has changed, found by verify itself: the functions of the
// original that FDEs and symbols describe are read from their starts on with Zydis. Data among the
// code shift what is read behind them: behind the end of a block, up to where a branch leads to,
// any bytes that would lead there count.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// A direct branch, an address that is taken relative to the instruction, or in a program at a fixed
// address an operand that is the address.
struct ArrivingBranch {
  VirtAddr source;  // of the instruction
  VirtAddr target;
  bool sure{};  // the instruction is one; else bytes that may be one
};

// All whose target is a changed byte, or so near one that it may be in the same instruction. Only
// functions with bytes that look like such a branch are read.
[[nodiscard]] std::vector<ArrivingBranch> find_arrivals(const ElfFile& before,
                                                        const ElfFile& after);

}  // namespace reprobe
