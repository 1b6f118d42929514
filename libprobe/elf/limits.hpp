// Bounds on what is taken into memory. A count from the file is checked against the file's size
// first; but a file with holes can be terabytes long at no cost, so the size alone is no bound.
// Both are several times more than the largest links leave behind.
#pragma once

#include <cstdint>

namespace reprobe {

inline constexpr std::uint64_t kMaxHeaders = std::uint64_t{1} << 22;  // sections, segments
inline constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 26;  // symbols, relocations

}  // namespace reprobe
