#include "libprobe/rewrite/kept_relocations.hpp"

#include <algorithm>

#include "libprobe/rewrite/section_header.hpp"

namespace reprobe {
namespace {

// Where an offset in the old section stands in the new one; nothing where its note is gone.
std::optional<std::uint64_t> moved_offset(const std::vector<KeptNote>& kept, std::uint64_t old) {
  auto after = std::ranges::upper_bound(kept, old, {}, &KeptNote::old_offset);
  if (after == kept.begin()) return std::nullopt;
  const KeptNote& note = *std::prev(after);
  if (!in_range(old, note.old_offset, note.old_size)) return std::nullopt;
  return old - note.old_offset + note.new_offset;
}

}  // namespace

Result<void> move_kept_relocations(Plan& plan, const ElfFile& file, const Section& table,
                                   const Section& notes, const std::vector<KeptNote>& kept) {
  const auto entries = file.relocations(table);
  if (!entries) return tl::unexpected(entries.error());
  const auto contents = file.contents(table);
  if (!contents) return tl::unexpected(contents.error());
  const unsigned word = file.header().word();
  Bytes out;
  out.reserve(contents->size());
  for (const Relocation& entry : *entries) {
    const auto offset = moved_offset(kept, entry.offset.value - notes.addr.value);
    if (!offset) continue;
    const auto bytes = contents->subspan(entry.entry_offset.value - table.offset.value,
                                         static_cast<std::size_t>(table.entsize.value));
    const std::size_t at = out.size();
    out.insert(out.end(), bytes.begin(), bytes.end());
    store_uint(out, at, word, file.header().order, *offset + notes.addr.value);
  }
  const std::size_t size = out.size();
  out.resize(contents->size());  // the freed tail becomes zeros, not stale entries
  if (out.empty()) return {};
  auto done = plan.replace(file.source(), table.offset, std::move(out),
                           "relocations of the notes follow them");
  if (!done) return done;
  return set_field(plan, file, table, SectionField::size, size,
                   "entries of removed notes are gone");
}

}  // namespace reprobe
