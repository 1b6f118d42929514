// How stubs unwind: as the code they stand for.
#pragma once

#include <span>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/compare_code.hpp"

namespace reprobe {

// Rule verify-unwind: an instruction of a stub has another row than the original has where it
// stands for, but for the stack pointer; or the result's tables have something that is neither the
// original's nor a stub's.
void compare_stub_rows(const ElfFile& before, const ElfFile& after,
                       std::span<const StandsFor> stands, std::vector<Finding>& out);

}  // namespace reprobe
