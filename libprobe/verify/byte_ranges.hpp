// The bytes of two files, outside of what may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// Offsets in a file, [begin, end).
struct Range {
  std::uint64_t begin{};
  std::uint64_t end{};
};

// Sorts them, and joins those that touch or overlap.
void merge_ranges(std::vector<Range>& ranges);

struct ByteDifference {
  std::uint64_t at{};
  std::optional<std::pair<std::byte, std::byte>>
      bytes;  // nothing: the result ends there, or before
};

// The first byte of `before` from `from` on that is in no range and differs in `after`. `allowed`
// ascend by their begin; they may overlap, and lie outside the file.
[[nodiscard]] std::optional<ByteDifference> first_difference(const ElfFile& before,
                                                             const ElfFile& after,
                                                             std::span<const Range> allowed,
                                                             std::uint64_t from = 0);

// Byte for byte?
[[nodiscard]] bool same_files(const ElfFile& before, const ElfFile& after);

// verify-bytes: "the byte at 0x12 is WHAT; expected 0x90, found 0xcc", or `ended`.
[[nodiscard]] Finding difference_finding(const ByteDifference& difference, std::string_view what,
                                         std::string ended);

}  // namespace reprobe
