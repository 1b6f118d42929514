#include "libprobe/rewrite/note_section.hpp"

#include <algorithm>

namespace reprobe {
namespace {

constexpr std::size_t kNoteAlign = 4;  // what every consumer reads (docs/consumers.md)

// One note of the section, of either kind, in file order.
struct Item {
  std::uint64_t offset{};
  std::uint64_t size{};
  ByteView bytes;
  std::optional<std::size_t> probe;  // index; nothing for a note of another owner
};

std::vector<Item> items_of(const ProbeFile& probes, const Section& section) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < probes.probes.size(); ++i) {
    const Note& note = probes.probes[i].note;
    if (note.section == section.index) items.push_back({note.offset, note.size, note.bytes, i});
  }
  for (const ForeignNote& note : probes.scan.foreign) {
    if (note.section == section.index) {
      items.push_back({note.offset, note.size, note.bytes, std::nullopt});
    }
  }
  std::ranges::sort(items, {}, &Item::offset);
  return items;
}

}  // namespace

NoteFields repaired_fields(const Probe& probe, const ProbeFile& probes) {
  NoteFields fields = probe.note;
  fields.location = probe.site;
  fields.semaphore = probe.semaphore;
  fields.base = probes.base.value_or(VirtAddr{0});
  return fields;
}

Result<NewNotes> build_notes(const ElfFile& file, const ProbeFile& probes, const Section& section,
                             const std::vector<NoteFate>& fates) {
  NewNotes result;
  for (const Item& item : items_of(probes, section)) {
    const NoteFate fate = item.probe ? fates[*item.probe] : NoteFate::keep;
    if (fate == NoteFate::remove) continue;
    result.kept.push_back({item.offset, item.size, result.contents.size()});
    if (fate == NoteFate::rewrite) {
      const auto bytes = encode_note(repaired_fields(probes.probes[*item.probe], probes),
                                     file.header().is64, file.header().order);
      if (!bytes) return tl::unexpected(bytes.error());
      result.contents.insert(result.contents.end(), bytes->begin(), bytes->end());
    } else {
      result.contents.insert(result.contents.end(), item.bytes.begin(), item.bytes.end());
    }
    while (result.contents.size() % kNoteAlign != 0) result.contents.push_back(std::byte{0});
  }
  return result;
}

}  // namespace reprobe
