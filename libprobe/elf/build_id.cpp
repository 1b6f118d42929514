// The GNU build-id: a note of owner "GNU", type NT_GNU_BUILD_ID.
#include <fmt/format.h>

#include "libprobe/elf/file.hpp"

namespace reprobe {
namespace {

// Linkers write 8 to 20 bytes; `--build-id=0x...` any number. More than this is not an id.
constexpr std::uint64_t kMaxIdSize = 1024;

using Range = std::pair<FileOffset, Size>;

// `align` as libelf's gelf_getnote reads it: 8 means 8, anything else 4.
std::optional<Range> id_in_notes(ByteView notes, FileOffset start, std::uint64_t align,
                                 std::endian order) {
  const std::uint64_t mask = align == 8 ? 7 : 3;
  // Sizes are 32-bit fields: sums of a few of them do not wrap 64 bits.
  const auto padded = [&](std::uint64_t size) { return (size + mask) & ~mask; };
  std::uint64_t at = 0;
  while (notes.size() - at >= 12) {
    const ByteView note = notes.subspan(static_cast<std::size_t>(at));
    const std::uint64_t namesz = load_uint(note, 0, 4, order);
    const std::uint64_t descsz = load_uint(note, 4, 4, order);
    const std::uint64_t type = load_uint(note, 8, 4, order);
    const std::uint64_t desc = padded(12 + namesz);
    if (desc > note.size() || descsz > note.size() - desc) return std::nullopt;
    const bool is_gnu = namesz == 4 && as_text(note.subspan(12, 4)) == std::string_view("GNU", 4);
    if (is_gnu && type == NT_GNU_BUILD_ID && descsz != 0 && descsz <= kMaxIdSize)
      return Range{{start.value + at + desc}, {descsz}};
    const std::uint64_t next = padded(desc + descsz);
    if (next > note.size()) return std::nullopt;
    at += next;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::pair<FileOffset, Size>> ElfFile::build_id_range() const {
  // The section first: in a debug file the program headers are often the program's own.
  if (const Section* section = this->section(".note.gnu.build-id")) {
    const ByteView notes = contents(*section).value_or(ByteView{});
    if (auto id = id_in_notes(notes, section->offset, section->addralign.value, header_.order))
      return id;
  }
  if (debug_file_) return std::nullopt;
  // Many segments may name the same bytes: all together are read as if they did not overlap.
  std::uint64_t left = source_->size();
  for (const Segment& segment : segments_) {
    if (segment.type != PT_NOTE || segment.filesz.value > left) continue;
    left -= segment.filesz.value;
    const auto notes = source_->slice(segment.offset, segment.filesz, "PT_NOTE");
    if (!notes) continue;
    if (auto id = id_in_notes(*notes, segment.offset, segment.align.value, header_.order))
      return id;
  }
  return std::nullopt;
}

std::string ElfFile::build_id() const {
  std::string text;
  const auto range = build_id_range();
  if (!range) return text;
  const auto bytes = source_->slice(range->first, range->second, "build-id");
  if (!bytes) return text;
  for (const std::byte b : *bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return text;
}

}  // namespace reprobe
