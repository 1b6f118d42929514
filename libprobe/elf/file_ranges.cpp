#include "libprobe/elf/file_ranges.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace reprobe {
namespace {

// Every refusal of a file may name the same section.
constexpr std::size_t kLongestName = 64;

}  // namespace

FileRanges::FileRanges(const ElfFile& file) : file_(file) {
  const ElfHeader& header = file.header();
  const std::uint64_t header_size = header.is64 ? 64 : 52;
  add(0, header_size, kHeader);
  // The tables were read: their counts are bounded and the products do not wrap.
  add(header.phoff.value, file.segments().size() * header.phentsize, kProgramHeaders);
  add(header.shoff.value, file.sections().size() * header.shentsize, kSectionHeaders);
  for (const Segment& segment : file.segments()) {
    add(segment.offset.value, segment.filesz.value, kSegment);
  }
  for (const Section& section : file.sections()) {
    if (section.nobits() || section.type == SHT_NULL) continue;
    add(section.offset.value, section.size.value, section.index);
    section_over_header_ |= section.size.value != 0 && section.offset.value < header_size;
  }
  std::ranges::stable_sort(ranges_, {}, &Range::begin);
  find_last_ends();
}

void FileRanges::add(std::uint64_t begin, std::uint64_t size, std::uint64_t owner) {
  if (size == 0) return;
  const std::uint64_t end =
      checked_add(begin, size).value_or(std::numeric_limits<std::uint64_t>::max());
  ranges_.push_back({begin, end, owner, 0, std::nullopt});
}

void FileRanges::find_last_ends() {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    Range& range = ranges_[i];
    range.last = i;
    if (i == 0) continue;
    const Range& before = ranges_[i - 1];
    range.second = before.second;
    const Range& best = ranges_[before.last];
    if (range.end <= best.end) {
      range.last = before.last;
      const bool other = range.owner != best.owner;
      if (other && (!range.second || ranges_[*range.second].end < range.end)) range.second = i;
    } else if (range.owner != best.owner) {
      range.second = before.last;
    }
  }
}

std::optional<std::string> FileRanges::sharer(std::uint64_t begin, std::uint64_t size,
                                              std::uint64_t owner) const {
  const auto end = checked_add(begin, size).value_or(std::numeric_limits<std::uint64_t>::max());
  const auto after = std::ranges::lower_bound(ranges_, end, {}, &Range::begin);
  if (size == 0 || after == ranges_.begin()) return std::nullopt;
  const Range& nearest = *std::prev(after);
  const Range* other = &ranges_[nearest.last];
  if (other->owner == owner) {
    if (!nearest.second) return std::nullopt;
    other = &ranges_[*nearest.second];
  }
  if (other->end <= begin) return std::nullopt;
  if (other->owner == kSegment) return "a segment";
  if (other->owner >= kHeader) return "a header table";
  const Section* section = file_.section_at(static_cast<std::uint32_t>(other->owner));
  if (section->name.empty()) return fmt::format("section {}", section->index);
  return section->name.substr(0, kLongestName);
}

std::optional<std::string> FileRanges::sharer(const Section& section) const {
  return sharer(section.offset.value, section.size.value, section.index);
}

std::optional<std::string> FileRanges::sharer_of_section_headers() const {
  const ElfHeader& header = file_.header();
  return sharer(header.shoff.value, file_.sections().size() * header.shentsize, kSectionHeaders);
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> FileRanges::unclaimed(
    std::uint64_t from) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> result;
  const std::uint64_t size = file_.source().size();
  for (const Range& range : ranges_) {
    if (from >= size) break;
    // What a hostile header claims can lie behind the end.
    if (range.begin > from) result.emplace_back(from, std::min(range.begin, size));
    from = std::max(from, range.end);
  }
  if (from < size) result.emplace_back(from, size);
  return result;
}

}  // namespace reprobe
