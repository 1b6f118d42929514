#include "libprobe/rewrite/kept_relocations.hpp"

#include <algorithm>

namespace reprobe {
namespace {

// Where an offset in the old section stands in the new one; nothing where its note is gone. A
// descriptor moves by itself: the padding before it may change.
std::optional<std::uint64_t> moved_offset(const std::vector<KeptNote>& kept, std::uint64_t old) {
  auto after = std::ranges::upper_bound(kept, old, {}, &KeptNote::old_offset);
  if (after == kept.begin()) return std::nullopt;
  const KeptNote& note = *std::prev(after);
  if (!in_range(old, note.old_offset, note.old_size)) return std::nullopt;
  if (old >= note.old_desc) return old - note.old_desc + note.new_desc;
  return old - note.old_offset + note.new_offset;
}

}  // namespace

Result<MovedRelocations> move_relocations(const ElfFile& file, const Section& table,
                                          const Section& notes, const std::vector<KeptNote>& kept) {
  const auto refused = [&](std::string why) {
    return fail(ErrorCode::refused, table.name, std::move(why));
  };
  const auto entries = file.relocations(table);
  const auto contents = file.contents(table);
  if (!entries || !contents) return refused("the relocations of the notes cannot be read");
  const unsigned word = file.header().word();
  const std::uint64_t entry_size = word * (table.type == SHT_RELA ? 3U : 2U);
  // sh_entsize 0 means the structure's own size.
  const auto stride =
      static_cast<std::size_t>(table.entsize.value == 0 ? entry_size : table.entsize.value);
  if (contents->size() % stride != 0) return refused("the relocations of the notes are cut short");
  MovedRelocations result;
  result.contents.reserve(contents->size());
  for (const Relocation& entry : *entries) {
    if (!in_range(entry.offset.value, notes.addr.value, notes.size.value)) {
      return refused("a relocation of the notes lies outside of them");
    }
    const auto offset = moved_offset(kept, entry.offset.value - notes.addr.value);
    if (!offset) continue;
    const std::uint64_t value = *offset + notes.addr.value;
    if (word == 4 && !narrow<std::uint32_t>(value)) return refused("an address does not fit");
    const auto at = static_cast<std::size_t>(entry.entry_offset.value - table.offset.value);
    const ByteView bytes = contents->subspan(at, stride);
    result.contents.insert(result.contents.end(), bytes.begin(), bytes.end());
    store_uint(std::span(result.contents).last(stride), 0, word, file.header().order, value);
  }
  result.used = result.contents.size();
  result.contents.resize(contents->size());  // the freed tail becomes zeros, not stale entries
  return result;
}

}  // namespace reprobe
