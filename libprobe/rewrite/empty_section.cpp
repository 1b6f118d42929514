#include "libprobe/rewrite/empty_section.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace reprobe {
namespace {

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t index;  // of the section
};

// The loaded sections that have bytes, by address.
std::vector<Range> loaded_sections(const ElfFile& file, std::optional<std::uint32_t> without) {
  std::vector<Range> ranges;
  for (const Section& section : file.sections()) {
    if (!section.allocated() || section.index == without || section.size.value == 0) continue;
    const bool tbss = section.nobits() && (section.flags & SHF_TLS) != 0;
    const auto end = checked_add(section.addr.value, section.size.value);
    if (!tbss && end) ranges.push_back({section.addr.value, *end, section.index});
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  return ranges;
}

// The places between sections, of which only some suit every tool. Measured with binutils 2.40,
// elfutils 0.188, llvm-strip 19 and BOLT 19:
// - inside a section GNU strip moves the base behind it, so that perf is wrong afterwards, and
//   eu-strip fills the rest of the section with zeros, so that the program breaks;
// - where code starts, BOLT crashes if the base's header stands behind that section's;
// - at the very end of the segment llvm-strip puts its offset outside.
class Places {
 public:
  Places(const ElfFile& file, const Section& near, std::optional<std::uint32_t> header,
         const Segment& segment)
      : file_(file), near_(near), header_(header), segment_(segment) {}

  std::optional<EmptyPlace> best() {
    const std::vector<Range> sections = loaded_sections(file_, header_);
    std::uint64_t covered = 0;  // up to here by an earlier section
    for (std::size_t i = 0; i < sections.size(); ++i) {
      const Range& section = sections[i];
      if (section.begin >= covered) consider_start(section);
      covered = std::max(covered, section.end);
      const bool last = i + 1 == sections.size();
      consider_end(covered,
                   last ? std::numeric_limits<std::uint64_t>::max() : sections[i + 1].begin);
    }
    return best_;
  }

 private:
  enum Rank { nowhere, segment_end, section_start, gap, gap_behind_near };

  void consider_start(const Range& section) {
    if (header_ && *header_ < section.index) offer(section.begin, section_start);
  }

  // `at` is where a section ends and `next` where the following one starts.
  void consider_end(std::uint64_t at, std::uint64_t next) {
    if (at >= next) return;
    const std::uint64_t end_of_near = near_.addr.value + near_.size.value;
    if (at == segment_.vaddr.value + segment_.filesz.value) {
      if (segment_.filesz == segment_.memsz) offer(at, segment_end);
    } else {
      offer(at, at == end_of_near ? gap_behind_near : gap);
    }
  }

  void offer(std::uint64_t at, Rank rank) {
    if (rank <= rank_ || at < segment_.vaddr.value) return;
    const FileOffset offset{at - segment_.vaddr.value + segment_.offset.value};
    const bool at_end = at == segment_.vaddr.value + segment_.filesz.value;
    if (at_end ? rank != segment_end : file_.offset_of(VirtAddr{at}) != offset) return;
    best_ = {VirtAddr{at}, offset};
    rank_ = rank;
  }

  const ElfFile& file_;
  const Section& near_;
  std::optional<std::uint32_t> header_;
  const Segment& segment_;
  std::optional<EmptyPlace> best_;
  Rank rank_{nowhere};
};

}  // namespace

std::optional<EmptyPlace> empty_section_place(const ElfFile& file, const Section& near,
                                              std::optional<std::uint32_t> header) {
  const Segment* segment = file.load_segment(near.addr);
  // In a hostile file another segment may hold the address too.
  const bool same = segment != nullptr && segment->vaddr.value - segment->offset.value ==
                                              near.addr.value - near.offset.value;
  if (!same) return std::nullopt;
  return Places(file, near, header, *segment).best();
}

}  // namespace reprobe
