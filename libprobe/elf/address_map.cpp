#include "libprobe/elf/address_map.hpp"

#include <algorithm>
#include <functional>
#include <queue>

namespace reprobe {

AddressMap::AddressMap(std::span<const AddressRange> best_first) {
  std::vector<std::uint32_t> by_start;
  std::vector<std::uint64_t> points;
  for (std::uint32_t rank = 0; rank < best_first.size(); ++rank) {
    const AddressRange& range = best_first[rank];
    if (range.size.value == 0) continue;
    by_start.push_back(rank);
    points.push_back(range.start.value);
    if (const auto end = checked_add(range.start.value, range.size.value)) points.push_back(*end);
  }
  std::ranges::sort(by_start, {}, [&](std::uint32_t rank) { return best_first[rank].start; });
  std::ranges::sort(points);
  points.erase(std::unique(points.begin(), points.end()), points.end());

  // A sweep over the points where a range starts or ends; the best of the open ones is on top.
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> open;
  auto next = by_start.begin();
  for (const std::uint64_t point : points) {
    for (; next != by_start.end() && best_first[*next].start.value == point; ++next)
      open.push(*next);
    const auto has_ended = [&](const AddressRange& range) {
      return !in_range(point, range.start.value, range.size.value);
    };
    while (!open.empty() && has_ended(best_first[open.top()])) open.pop();
    std::optional<std::uint32_t> id;
    if (!open.empty()) id = best_first[open.top()].id;
    if (pieces_.empty() || pieces_.back().id != id) pieces_.push_back({point, id});
  }
}

std::optional<std::uint32_t> AddressMap::find(VirtAddr address) const {
  const auto after = std::ranges::upper_bound(pieces_, address.value, {}, &Piece::start);
  if (after == pieces_.begin()) return std::nullopt;
  return std::prev(after)->id;
}

}  // namespace reprobe
