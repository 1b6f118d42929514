#include "libprobe/rewrite/note_section.hpp"

#include <algorithm>

#include "libprobe/notes/section_scan.hpp"
#include "libprobe/notes/walk.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kNoteAlign = 4;  // what every consumer reads (docs/consumers.md)
constexpr std::uint64_t kDescriptor = kNoteHeader + kStapsdtOwner.size() + 1;  // encode_note()

// The notes of one section that stand in a list sorted by place. Sections whose notes were read do
// not overlap (scan_notes), so they stand together.
template <typename Item, typename Projection>
std::span<const Item> in_section(const std::vector<Item>& list, const Section& section,
                                 Projection place) {
  const FileOffset end{section.offset.value + section.size.value};
  const auto first = std::ranges::lower_bound(list, section.offset, {}, place);
  return {first, std::ranges::lower_bound(first, list.end(), end, {}, place)};
}

constexpr auto place_of_probe = [](const Probe& probe) { return probe.note.file_offset; };

class NoteBuilder {
 public:
  NoteBuilder(const ElfFile& file, VirtAddr base) : file_(file), base_(base) {}

  Result<void> probe(const Probe& probe, NoteFate fate) {
    const Note& note = probe.note;
    NoteFields fields = note;
    if (fate == NoteFate::rewrite) {
      fields = repaired_fields(probe, base_);
      const auto bytes = encode_note(fields, file_.header().is64, file_.header().order);
      if (!bytes) return tl::unexpected(bytes.error());
      kept(note, kDescriptor);
      append(*bytes);
    } else {
      kept(note, note.desc);
      append(note.bytes);
    }
    expected_.notes.push_back(std::move(fields));
    return {};
  }

  // In a section laid out for 8 its descriptor stood behind other padding.
  void foreign(const ForeignNote& note) {
    const auto padded = [](std::uint64_t size) {
      return (size + kNoteAlign - 1) / kNoteAlign * kNoteAlign;
    };
    kept(note, padded(kNoteHeader + note.namesz));
    append(note.bytes.first(static_cast<std::size_t>(kNoteHeader + note.namesz)));
    if (note.descsz != 0)
      append(note.bytes.subspan(static_cast<std::size_t>(note.desc), note.descsz));
    expected_.owners.push_back(note.owner);
  }

  // A hostile file can hold bytes that read as one chain of notes here and as another there: what
  // follows a removed note, say. The result must read as what was put together.
  Result<NewNotes> finish() {
    NoteScan scan;
    std::vector<Finding> findings;
    NoteReport report(findings, true);
    scan_note_section({.bytes = result_.contents,
                       .index = 0,
                       .offset = {},
                       .addralign = kNoteAlign,
                       .is64 = file_.header().is64,
                       .order = file_.header().order},
                      scan, report);
    const auto same_fields = [](const NoteFields& a, const NoteFields& b) {
      return a.location == b.location && a.base == b.base && a.semaphore == b.semaphore &&
             a.provider == b.provider && a.name == b.name && a.arguments == b.arguments;
    };
    const bool same = scan.stopped.empty() &&
                      std::ranges::equal(scan.notes, expected_.notes, same_fields) &&
                      std::ranges::equal(scan.foreign, expected_.owners, {}, &ForeignNote::owner);
    if (!same) {
      return fail(ErrorCode::refused, std::string(kStapsdtSection),
                  "readers would not find the same notes in the repaired section");
    }
    return std::move(result_);
  }

 private:
  template <typename AnyNote>
  void kept(const AnyNote& note, std::uint64_t new_desc) {
    const std::uint64_t at = result_.contents.size();
    result_.kept.push_back({note.offset, note.size, note.offset + note.desc, at, at + new_desc});
  }

  void append(ByteView bytes) {
    result_.contents.insert(result_.contents.end(), bytes.begin(), bytes.end());
    while (result_.contents.size() % kNoteAlign != 0) result_.contents.push_back(std::byte{0});
  }

  struct Expected {
    std::vector<NoteFields> notes;
    std::vector<std::string> owners;
  };

  const ElfFile& file_;
  VirtAddr base_;
  NewNotes result_;
  Expected expected_;
};

}  // namespace

NoteFields repaired_fields(const Probe& probe, VirtAddr base) {
  NoteFields fields = probe.note;
  fields.location = probe.site;
  fields.semaphore = probe.semaphore;
  fields.base = base;
  return fields;
}

ProbeRange probes_of(const ProbeFile& probes, const Section& section) {
  const auto range = in_section(probes.probes, section, place_of_probe);
  return {static_cast<std::size_t>(range.data() - probes.probes.data()), range.size()};
}

Result<NewNotes> build_notes(const ElfFile& file, const ProbeFile& probes, const Section& section,
                             std::span<const NoteFate> fates, VirtAddr base) {
  NoteBuilder builder(file, base);
  const ProbeRange range = probes_of(probes, section);
  const auto others = in_section(probes.scan.foreign, section, &ForeignNote::file_offset);
  auto other = others.begin();
  for (std::size_t i = range.first; i < range.first + range.count; ++i) {
    const Probe& probe = probes.probes[i];
    for (; other != others.end() && other->offset < probe.note.offset; ++other) {
      builder.foreign(*other);
    }
    if (fates[i] == NoteFate::remove) continue;
    auto done = builder.probe(probe, fates[i]);
    if (!done) return tl::unexpected(done.error());
  }
  for (; other != others.end(); ++other) builder.foreign(*other);
  return builder.finish();
}

}  // namespace reprobe
