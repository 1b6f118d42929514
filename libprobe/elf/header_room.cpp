#include "libprobe/elf/header_room.hpp"

#include <algorithm>

namespace reprobe {

bool is_overwritten_by_patchelf(const ElfFile& file) {
  const ElfHeader& header = file.header();
  // It has something to do in files alone that a dynamic linker reads.
  const bool dynamic = std::ranges::any_of(
      file.segments(), [](const Segment& segment) { return segment.type == PT_DYNAMIC; });
  if (header.type != ET_DYN || !dynamic || file.sections().empty()) return false;
  const std::uint64_t entries = file.segments().size() + 1;  // a PT_LOAD for what it moves
  const std::uint64_t begin = header.phoff.value;
  const std::uint64_t size = entries * header.phentsize;
  const auto behind_table = [&](const Section& section) {
    return in_range(section.offset.value, begin, size);
  };
  const auto sections = file.sections().subspan(1);
  const auto stays = std::ranges::find_if_not(
      sections, [&](const Section& s) { return s.offset.value <= begin + size; });
  return std::any_of(stays, sections.end(), [&](const Section& s) {
    return s.allocated() && !s.nobits() && s.size.value != 0 && behind_table(s);
  });
}

}  // namespace reprobe
