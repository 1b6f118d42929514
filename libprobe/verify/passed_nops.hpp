// Nops do nothing but lead on, and so every nop may stand for every other. But tracers and the
// kernel look at their bytes: the result has no nop that is neither a sled, nor the original's, nor
// what fills a window behind a sled.
#pragma once

#include <set>
#include <span>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/compare_code.hpp"

namespace reprobe {

// Bytes of the sled at an address: one of the forms that docs/sleds.md names; 0: there is none.
[[nodiscard]] Size sled_at(const ElfFile& file, VirtAddr at);

// `sleds`: where the notes of the result name one that the original has not.
void compare_passed_nops(const ElfFile& before, const ElfFile& after,
                         const std::set<VirtAddr>& sleds, std::span<const StandsFor> stands,
                         std::vector<Finding>& out);

}  // namespace reprobe
