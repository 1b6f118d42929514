#include "libprobe/probes/shift.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "libprobe/code/nop.hpp"

namespace reprobe {
namespace {

// Notes that must agree where nothing but the addresses themselves speaks for a shift; and how
// many times more must agree with it than without: one byte in about 150 is a nop by accident.
constexpr std::size_t kEnoughHits = 8;
constexpr std::size_t kTimesMore = 10;

std::size_t hits(const ElfFile& file, const NoteScan& scan, std::uint64_t distance) {
  return static_cast<std::size_t>(std::ranges::count_if(scan.notes, [&](const Note& note) {
    return is_site(file, VirtAddr{note.location.value + distance});
  }));
}

struct Candidate {
  std::uint64_t distance{};
  std::size_t enough{};
  const char* why{};
};

std::vector<Candidate> candidates(const ElfFile& file, const NoteScan& scan) {
  std::vector<Candidate> result;
  const Section* notes = file.section_at(scan.notes.front().section);
  if (notes != nullptr && !notes->allocated() && notes->addr.value != 0) {
    // Linkers give sections that are not loaded the address 0; objcopy moves them too.
    result.push_back({notes->addr.value, 1, "the address of the note section"});
  }
  if (file.header().type == ET_DYN) {
    std::uint64_t lowest = ~std::uint64_t{0};
    for (const Segment& segment : file.segments()) {
      if (segment.type == PT_LOAD) lowest = std::min(lowest, segment.vaddr.value);
    }
    // Linkers start position-independent files at 0, prelink moves them.
    if (lowest != 0 && lowest != ~std::uint64_t{0}) {
      result.push_back({lowest, kEnoughHits, "the address of the first segment"});
    }
  }
  return result;
}

}  // namespace

bool is_site(const ElfFile& file, VirtAddr address) {
  const Section* section = file.section_containing(address);
  if (section == nullptr || !section->executable()) return false;
  const ByteView bytes = file.bytes_at(address, kLongestNop);
  const auto fits = [&](bool thumb) {
    const NopKind kind = nop_at(bytes, file.header(), thumb).kind;
    return kind != NopKind::none && kind != NopKind::other;
  };
  return fits(false) || (file.header().machine == EM_ARM && fits(true));
}

Shift find_shift(const ElfFile& file, const NoteScan& scan) {
  if (file.header().type == ET_REL || scan.notes.empty()) return {};
  Shift possible;
  for (const Candidate& candidate : candidates(file, scan)) {
    const std::size_t with = hits(file, scan, candidate.distance);
    const std::size_t without = hits(file, scan, 0);
    if (with <= without) continue;
    // Enough of all notes, too: what is repaired by a shift must not look as if it had another.
    const bool proven = with >= candidate.enough && with >= kTimesMore * without &&
                        kTimesMore * with > scan.notes.size();
    Shift shift{candidate.distance, proven,
                fmt::format("{} of {} notes stand on a nop {:#x} further ({}), {} where they point",
                            with, scan.notes.size(), candidate.distance, candidate.why, without)};
    if (shift.proven) return shift;
    possible = std::move(shift);
  }
  return possible;
}

}  // namespace reprobe
