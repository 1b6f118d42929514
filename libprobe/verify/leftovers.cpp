#include "libprobe/verify/leftovers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/elf/file_ranges.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// Gives the offset of the first byte of [begin, end) that is not zero; `end` where all are.
std::uint64_t first_nonzero(const ElfFile& file, std::uint64_t begin, std::uint64_t end) {
  const auto bytes = file.source().slice(FileOffset{begin}, Size{end - begin}, "leftover bytes");
  if (!bytes) return begin;
  const auto found = std::ranges::find_if(*bytes, [](std::byte b) { return b != std::byte{0}; });
  return begin + static_cast<std::uint64_t>(found - bytes->begin());
}

bool unchanged(const ElfFile& before, const ElfFile& after, std::uint64_t begin,
               std::uint64_t end) {
  const auto old_bytes =
      before.source().slice(FileOffset{begin}, Size{end - begin}, "leftover bytes");
  const auto new_bytes =
      after.source().slice(FileOffset{begin}, Size{end - begin}, "leftover bytes");
  return old_bytes && new_bytes && std::ranges::equal(*old_bytes, *new_bytes);
}

// Of a section whose contents are written anew: its old bytes that are not its bytes now.
void compare_left_behind(const ElfFile& before, const ElfFile& after, const Section& old,
                         const Section* now, std::vector<Finding>& out) {
  const bool stays = now != nullptr && !now->nobits() && now->offset == old.offset;
  const std::uint64_t used = stays ? std::min(now->size.value, old.size.value) : 0;
  const std::uint64_t begin = old.offset.value + used, end = old.offset.value + old.size.value;
  if (begin == end || unchanged(before, after, begin, end)) return;
  if (const std::uint64_t at = first_nonzero(after, begin, end); at != end) {
    out.push_back(verify_finding(
        "verify-bytes",
        fmt::format("the byte at {:#x} was of section {} and is neither as it was nor zero", at,
                    old.name)));
  }
}

}  // namespace

bool is_note_relocations(const ElfFile& file, const Section& section) {
  if (!section.holds_relocations()) return false;
  const Section* target = file.section_at(section.info);
  return !section.allocated() && target != nullptr && holds_notes(*target);
}

void compare_leftovers(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                       std::vector<Finding>& out) {
  for (const Section& old : before.sections()) {
    const bool anew = (holds_notes(old) && !old.allocated()) || is_note_relocations(before, old);
    if (!anew || !old.in_file || old.nobits()) continue;
    // A hostile file's header 0 may say anything, and stays where it is.
    const std::uint32_t index = match.now[old.index];
    const bool gone = index == 0 && old.index != 0;
    compare_left_behind(before, after, old, gone ? nullptr : after.section_at(index), out);
  }
  compare_appended(before, after, out);
}

void compare_appended(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out) {
  for (const auto& [begin, end] : FileRanges(after).unclaimed(before.source().size())) {
    if (const std::uint64_t at = first_nonzero(after, begin, end); at != end) {
      out.push_back(verify_finding(
          "verify-bytes",
          fmt::format("the byte at {:#x} behind the old file belongs to no section", at)));
      return;
    }
    if (end == after.source().size()) {
      out.push_back(verify_finding(
          "verify-bytes", fmt::format("the file has bytes from {:#x} on that nothing needs",
                                      std::max(begin, before.source().size()))));
    }
  }
}

}  // namespace reprobe
