// How many entries a jump table has, from the comparison that guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "libprobe/code/value_origin.hpp"

namespace reprobe {

// The most that a table is believed to have.
inline constexpr std::uint64_t kMostTableEntries = std::uint64_t{1} << 16;

// `load` (an index in the code) reads the table. The number of entries it can read, 1 to
// kMostTableEntries, where one path alone leads to it and passes a comparison of the index with a
// constant; nothing otherwise.
[[nodiscard]] std::optional<std::uint64_t> table_bound(const CodePiece& piece,
                                                       const OriginFinder& finder,
                                                       std::size_t load);

}  // namespace reprobe
