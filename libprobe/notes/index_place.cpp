// Where the index stands in a file: through its program headers, as a program finds it in itself.
#include <string_view>

#include "libprobe/notes/index.hpp"
#include "libprobe/notes/walk.hpp"

namespace reprobe {
namespace {

bool is_index(ByteView notes, const RawNote& note) {
  constexpr std::string_view kName("reprobe\0", 8);
  return note.namesz == kName.size() && note.type == kIndexType &&
         as_text(notes.subspan(static_cast<std::size_t>(note.name), kName.size())) == kName;
}

}  // namespace

std::optional<IndexPlace> find_index(const ElfFile& file) {
  // Many segments may name the same bytes: all together are read as if they did not overlap.
  std::uint64_t left = file.source().size();
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_NOTE || segment.align.value == 8 || segment.filesz.value > left)
      continue;
    left -= segment.filesz.value;
    // A debug file's PT_NOTE may be the program's own, with other bytes there.
    const auto mapped = file.offset_of(segment.vaddr);
    if (!mapped || *mapped != segment.offset) continue;
    const ByteView notes = file.bytes_at(segment.vaddr, segment.filesz);
    if (notes.size() != segment.filesz.value) continue;
    const NoteLayout layout{.align = 4, .order = file.header().order, .gaps = false};
    std::uint64_t at = 0;
    while (at < notes.size()) {
      const auto note = read_note(notes, at, layout);
      if (!note || note->next <= at) break;
      if (is_index(notes, *note) && (segment.vaddr.value + at) % 4 == 0) {
        return IndexPlace{.segment = segment.index,
                          .offset = {segment.offset.value + at},
                          .address = {segment.vaddr.value + at},
                          .size = Size{note->next - at}};
      }
      at = note->next;
    }
  }
  return std::nullopt;
}

Result<ProbeIndex> read_index(const ElfFile& file, const IndexPlace& place) {
  const auto note = file.source().slice(place.offset, place.size, "the index");
  if (!note) return tl::unexpected(note.error());
  return decode_index(note->subspan(static_cast<std::size_t>(kIndexDescriptor)),
                      VirtAddr{place.address.value + kIndexDescriptor}, file.header());
}

}  // namespace reprobe
