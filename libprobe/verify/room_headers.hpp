// The program headers of a file that was given room: for an index of its probes, or for code.
#pragma once

#include <optional>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/verify/byte_ranges.hpp"

namespace reprobe {

// Rule verify-segment: each header of the input means what it did, at most a PT_LOAD that is not
// writable has grown over padding. New is at most a PT_LOAD that is not writable; for an index that
// the file did not have, also its PT_NOTE. Without an index, PT_GNU_EH_FRAME may have moved: what
// it leads to is compared elsewhere.
void compare_room_headers(const ElfFile& before, const ElfFile& after,
                          const std::optional<IndexPlace>& index, std::vector<Finding>& out);

// Where the table of the result stands in the file, if that is where it stood: its bytes and those
// that it has grown over. These were padding, or what a header says that leads elsewhere now.
// Nothing where the table has moved: the old one stays. Rule verify-segment.
[[nodiscard]] std::optional<Range> table_in_place(const ElfFile& before, const ElfFile& after,
                                                  std::vector<Finding>& out);

// The padding that segments have grown over, as offsets in the input. Rule verify-bytes: it was
// something else.
[[nodiscard]] std::vector<Range> grown_ranges(const ElfFile& before, const ElfFile& after,
                                              std::vector<Finding>& out);

}  // namespace reprobe
