// The padding behind a segment's bytes.
#pragma once

#include <optional>

#include "libprobe/rewrite/layout_loads.hpp"

namespace reprobe {

// The first aligned offset behind the segment's file bytes from which `size` bytes are padding:
// zeros that nothing claims, in the file, and free up to the next segment's page in memory. Nothing
// where there are none, or where the segment ends in .bss. O(segments + sections + size).
[[nodiscard]] std::optional<FileOffset> gap_behind(const ElfFile& file, const LoadMap& map,
                                                   const Segment& load, Size size,
                                                   std::uint64_t align);

}  // namespace reprobe
