#include "libprobe/verify/byte_ranges.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/elf/same_bytes.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// In pieces, so that a source that reads need not hold all.
std::optional<ByteDifference> difference_in(const ElfFile& before, const ElfFile& after,
                                            std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  for (std::uint64_t at = begin; at < end; at += std::min(kPiece, end - at)) {
    const Size size{std::min(kPiece, end - at)};
    const auto a = before.source().slice(FileOffset{at}, size, "bytes to compare");
    const auto b = after.source().slice(FileOffset{at}, size, "bytes to compare");
    if (!a || !b) return ByteDifference{at, {}};
    const auto differ = first_mismatch(*a, *b);
    if (!differ) continue;
    return ByteDifference{at + *differ, std::pair((*a)[*differ], (*b)[*differ])};
  }
  return std::nullopt;
}

}  // namespace

void merge_ranges(std::vector<Range>& ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> merged;
  for (const Range& range : ranges) {
    if (merged.empty() || merged.back().end < range.begin) merged.push_back(range);
    merged.back().end = std::max(merged.back().end, range.end);
  }
  ranges = std::move(merged);
}

std::optional<ByteDifference> first_difference(const ElfFile& before, const ElfFile& after,
                                               std::span<const Range> allowed, std::uint64_t from) {
  const std::uint64_t end = before.source().size();
  std::uint64_t at = from;
  for (const Range& range : allowed) {
    // An empty section may state any offset.
    const std::uint64_t begin = std::min(range.begin, end);
    if (auto found = difference_in(before, after, at, begin)) return found;
    at = std::max(at, range.end);
  }
  return difference_in(before, after, at, end);
}

bool same_files(const ElfFile& before, const ElfFile& after) {
  return before.source().size() == after.source().size() && !first_difference(before, after, {});
}

Finding difference_finding(const ByteDifference& difference, std::string_view what,
                           std::string ended) {
  if (!difference.bytes) return verify_finding("verify-bytes", std::move(ended));
  const auto [expected, found] = *difference.bytes;
  return verify_finding(
      "verify-bytes",
      fmt::format("the byte at {:#x} is {}; expected {:#04x}, found {:#04x}", difference.at, what,
                  static_cast<unsigned>(expected), static_cast<unsigned>(found)));
}

}  // namespace reprobe
