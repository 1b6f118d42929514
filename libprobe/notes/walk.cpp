#include "libprobe/notes/walk.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <span>
#include <string_view>

#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kStapsdtNamesz = kStapsdtOwner.size() + 1;

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t align) {
  return (value + align - 1) / align * align;
}

bool all_zero(ByteView bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

bool stapsdt_header_at(ByteView section, std::uint64_t at, std::endian order) {
  if (at > section.size() || section.size() - at < kNoteHeader + kStapsdtNamesz) return false;
  const ByteView name = section.subspan(at + kNoteHeader, kStapsdtNamesz);
  return load_uint(section, at, 4, order) == kStapsdtNamesz &&
         as_text(name) == std::string_view("stapsdt", kStapsdtNamesz);
}

// Bytes from `at` that belong to no note: a zero tail too short for a header, or one or two zero
// words before a stapsdt note. Three zero words are a note of their own for every reader.
std::uint64_t gap_at(ByteView section, std::uint64_t at, std::endian order) {
  const std::uint64_t left = section.size() - at;
  if (left < kNoteHeader) return all_zero(section.subspan(at)) ? left : 0;
  for (const std::uint64_t words : {4U, 8U}) {
    if (!all_zero(section.subspan(at, words))) return 0;
    if (stapsdt_header_at(section, at + words, order)) return words;
  }
  return 0;
}

struct Walk {
  std::uint64_t stapsdt{};  // notes of that owner
  bool whole{};             // the chain ends at the section's end
  auto operator<=>(const Walk&) const = default;
};

Walk walk(ByteView section, const NoteLayout& layout) {
  Walk result;
  std::uint64_t at = 0;
  while (at < section.size()) {
    const auto note = read_note(section, at, layout);
    if (!note) return result;
    if (is_stapsdt(section, *note)) ++result.stapsdt;
    at = note->next;
  }
  result.whole = true;
  return result;
}

}  // namespace

std::optional<RawNote> read_note(ByteView section, std::uint64_t at, const NoteLayout& layout) {
  const std::uint64_t size = section.size();
  if (at > size || size - at < kNoteHeader) return std::nullopt;
  RawNote note{.at = at};
  note.namesz = static_cast<std::uint32_t>(load_uint(section, at, 4, layout.order));
  note.descsz = static_cast<std::uint32_t>(load_uint(section, at + 4, 4, layout.order));
  note.type = static_cast<std::uint32_t>(load_uint(section, at + 8, 4, layout.order));
  // Sums of an offset in memory and two 32-bit sizes do not wrap.
  note.name = at + kNoteHeader;
  note.desc = align_up(note.name + note.namesz, layout.align);
  note.desc_end = note.desc + note.descsz;
  // The padding behind the name may be cut off where there is no descriptor.
  if (note.descsz == 0) note.desc = note.desc_end = std::min(note.desc, size);
  if (note.name + note.namesz > size || note.desc_end > size) return std::nullopt;
  const std::uint64_t padded = align_up(note.desc_end, layout.align);
  note.next = std::min(padded, size);
  note.missing_padding = padded - note.next;
  if (layout.gaps) {
    note.gap = gap_at(section, note.next, layout.order);
    note.next += note.gap;
  }
  return note;
}

NoteLayout find_layout(ByteView section, std::endian order) {
  // 8 stands before 4 with gaps: padding for 8 can look like a gap, and the addresses then stand
  // four bytes later.
  const std::array candidates{NoteLayout{.align = 4, .order = order, .gaps = false},
                              NoteLayout{.align = 8, .order = order, .gaps = false},
                              NoteLayout{.align = 4, .order = order, .gaps = true}};
  NoteLayout best = candidates[0];
  Walk best_walk = walk(section, best);
  for (const NoteLayout& layout : std::span(candidates).subspan(1)) {
    if (const Walk found = walk(section, layout); found > best_walk) {
      best = layout;
      best_walk = found;
    }
  }
  return best;
}

bool is_stapsdt(ByteView section, const RawNote& note) {
  std::string_view name = as_text(section.subspan(note.name, note.namesz));
  while (name.ends_with('\0')) name.remove_suffix(1);
  return name == kStapsdtOwner;
}

}  // namespace reprobe
