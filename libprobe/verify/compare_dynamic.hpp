// What the dynamic linker does to two files: the relocations of their loaded tables, as the section
// headers name them, and the dynamic section. For the rewrite that takes relocations out.
#pragma once

#include <set>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

struct ComparedDynamic {
  std::vector<Finding> findings;  // rule verify-relocation
  // What may differ by it: bytes of the input, and sizes of sections, by index.
  std::vector<std::pair<FileOffset, Size>> bytes;
  std::vector<std::pair<std::uint32_t, Size>> sizes;
};

// The result's relocations are the input's, in their order, without those that write the words at
// `gone` (addresses). `after` has the input's loaded sections under the same numbers.
[[nodiscard]] ComparedDynamic compare_dynamic(const ElfFile& before, const ElfFile& after,
                                              const std::set<std::uint64_t>& gone);

}  // namespace reprobe
