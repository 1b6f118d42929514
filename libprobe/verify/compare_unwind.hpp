// What an unwinder finds for each address of the code of two files: through the search table of
// .eh_frame_hdr, as libgcc's _Unwind_Find_FDE does (unwind-dw2-fde-dip.c).
#pragma once

#include <optional>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/byte_ranges.hpp"

namespace reprobe {

// Rule verify-unwind: at an address of the input's code another FDE is found, and its row, the way
// that the frame is left or its LSDA is another. Gives the bytes of the input's search table, as
// addresses, where the result's stands in the same place: they were compared by what they lead to.
[[nodiscard]] std::optional<Range> compare_unwind(const ElfFile& before, const ElfFile& after,
                                                  std::vector<Finding>& out);

}  // namespace reprobe
