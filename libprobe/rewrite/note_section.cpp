#include "libprobe/rewrite/note_section.hpp"

#include <algorithm>
#include <array>

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

// A list of notes on its way to bytes, and what a reader must find in them.
class NoteBuilder {
 public:
  explicit NoteBuilder(const ElfFile& file) : file_(file) {}

  Result<void> probe(const Probe& probe, NoteFate fate, const NoteFields& wanted) {
    const Note& note = probe.note;
    if (fate == NoteFate::rewrite) {
      const auto bytes = encode_note(wanted, file_.header().is64, file_.header().order);
      if (!bytes) return tl::unexpected(bytes.error());
      kept(note, kDescriptor);
      append(*bytes);
      expected_.notes.push_back(wanted);
    } else {
      kept(note, note.desc);
      append(note.bytes);
      expected_.notes.push_back(note);
    }
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
  [[nodiscard]] bool reads_alike() const {
    NoteScan scan;
    std::vector<Finding> findings;
    NoteReport report(findings, true);
    scan_note_section({.bytes = contents_,
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
    return scan.stopped.empty() && std::ranges::equal(scan.notes, expected_.notes, same_fields) &&
           std::ranges::equal(scan.foreign, expected_.owners, {}, &ForeignNote::owner);
  }

  [[nodiscard]] Bytes& contents() { return contents_; }
  [[nodiscard]] std::vector<KeptNote>& kept() { return kept_; }

 private:
  template <typename AnyNote>
  void kept(const AnyNote& note, std::uint64_t new_desc) {
    const std::uint64_t at = contents_.size();
    kept_.push_back({note.offset, note.size, note.offset + note.desc, at, at + new_desc});
  }

  void append(ByteView bytes) {
    contents_.insert(contents_.end(), bytes.begin(), bytes.end());
    while (contents_.size() % kNoteAlign != 0) contents_.push_back(std::byte{0});
  }

  struct Expected {
    std::vector<NoteFields> notes;
    std::vector<std::string> owners;
  };

  const ElfFile& file_;
  Bytes contents_;
  std::vector<KeptNote> kept_;
  Expected expected_;
};

class SectionBuilder {
 public:
  SectionBuilder(const ElfFile& file, const ProbeFile& probes, const NoteChanges& changes)
      : probes_(probes), changes_(changes), notes_(file), apart_(file) {}

  Result<void> add(const Section& section) {
    const ProbeRange range = probes_of(probes_, section);
    const auto others = foreign_of(probes_, section);
    auto other = others.begin();
    for (std::size_t i = range.first; i < range.first + range.count; ++i) {
      const Probe& probe = probes_.probes[i];
      for (; other != others.end() && other->offset < probe.note.offset; ++other) foreign(*other);
      if (changes_.fates[i] == NoteFate::remove) continue;
      auto done = notes_.probe(probe, changes_.fates[i], changes_.fields[i]);
      if (!done) return done;
    }
    for (; other != others.end(); ++other) foreign(*other);
    return {};
  }

  Result<NewNotes> finish() {
    if (!notes_.reads_alike() || !apart_.reads_alike()) {
      return fail(ErrorCode::refused, std::string(kStapsdtSection),
                  "readers would not find the same notes in the repaired section");
    }
    NewNotes result;
    result.contents = std::move(notes_.contents());
    result.kept = std::move(notes_.kept());
    result.foreign = std::move(apart_.contents());
    return result;
  }

 private:
  void foreign(const ForeignNote& note) {
    (changes_.foreign_apart && is_other_owner(note) ? apart_ : notes_).foreign(note);
  }

  const ProbeFile& probes_;
  const NoteChanges& changes_;
  NoteBuilder notes_;
  NoteBuilder apart_;
};

}  // namespace

Section note_section(std::string_view name) {
  Section section;
  section.name = std::string(name);
  section.type = SHT_NOTE;
  section.addralign = Size{4};
  return section;
}

Result<void> append_notes(Plan& plan, SectionTable& headers, const ElfFile& file,
                          std::span<const NoteFields> notes, std::string why) {
  Bytes contents;
  for (const NoteFields& fields : notes) {
    const auto bytes = encode_note(fields, file.header().is64, file.header().order);
    if (!bytes) return tl::unexpected(bytes.error());
    contents.insert(contents.end(), bytes->begin(), bytes->end());
  }
  const auto added = headers.append(plan, note_section(kStapsdtSection), std::move(contents),
                                    std::move(why), "a section for the notes");
  return added ? Result<void>{} : tl::unexpected(added.error());
}

bool is_other_owner(const ForeignNote& note) { return note.owner != kStapsdtOwner; }

std::span<const ForeignNote> foreign_of(const ProbeFile& probes, const Section& section) {
  return in_section(probes.scan.foreign, section, &ForeignNote::file_offset);
}

ProbeRange probes_of(const ProbeFile& probes, const Section& section) {
  const auto range = in_section(probes.probes, section, place_of_probe);
  return {static_cast<std::size_t>(range.data() - probes.probes.data()), range.size()};
}

Result<NewNotes> build_notes(const ElfFile& file, const ProbeFile& probes,
                             std::span<const Section* const> sections, const NoteChanges& changes) {
  SectionBuilder builder(file, probes, changes);
  for (const Section* section : sections) {
    if (auto done = builder.add(*section); !done) return tl::unexpected(done.error());
  }
  return builder.finish();
}

Result<NewNotes> build_notes(const ElfFile& file, const ProbeFile& probes, const Section& section,
                             std::span<const NoteFate> fates, VirtAddr base) {
  std::vector<NoteFields> fields;
  fields.reserve(probes.probes.size());
  for (const Probe& probe : probes.probes) fields.push_back(repaired_fields(probe, base));
  const std::array sections{&section};
  return build_notes(file, probes, sections, {fates, fields, false});
}

NoteFields repaired_fields(const Probe& probe, VirtAddr base) {
  NoteFields fields = probe.note;
  fields.location = probe.site;
  fields.semaphore = probe.semaphore;
  fields.base = base;
  return fields;
}

}  // namespace reprobe
