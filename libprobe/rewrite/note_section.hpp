// The new contents of .note.stapsdt: kept notes in their order, each at a new place.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "libprobe/plan/plan.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

// Where a note stood and stands; offsets in the section, of the note and of its descriptor.
struct KeptNote {
  std::uint64_t old_offset{};
  std::uint64_t old_size{};
  std::uint64_t old_desc{};
  std::uint64_t new_offset{};
  std::uint64_t new_desc{};
};

struct NewNotes {
  Bytes contents;
  std::vector<KeptNote> kept;  // foreign notes included, ascending within each section
  Bytes foreign;               // notes of other owners, where they are to stand apart
};

// A new section of notes, that is not loaded, without size and place.
[[nodiscard]] Section note_section(std::string_view name);

// Adds such a section with these notes to a file without notes. `why`: the plan's reason. Errors:
// a field does not fit the class; those of SectionTable::append().
[[nodiscard]] Result<void> append_notes(Plan& plan, SectionTable& headers, const ElfFile& file,
                                        std::span<const NoteFields> notes, std::string why);

// The owner of the notes that bring a section of their own where they stand apart.
[[nodiscard]] bool is_other_owner(const ForeignNote& note);
[[nodiscard]] std::span<const ForeignNote> foreign_of(const ProbeFile& probes,
                                                      const Section& section);

// What becomes of one probe's note.
enum class NoteFate { keep, rewrite, remove };

// The probes of one section as [first, first + count) of ProbeFile::probes.
struct ProbeRange {
  std::size_t first{};
  std::size_t count{};
};

[[nodiscard]] ProbeRange probes_of(const ProbeFile& probes, const Section& section);

struct NoteChanges {
  std::span<const NoteFate> fates;     // one for each probe of the file
  std::span<const NoteFields> fields;  // likewise; of those that are rewritten
  bool foreign_apart{};                // notes of other owners go to NewNotes::foreign
};

// The notes of the sections, one after the other. Notes of other owners stay, in order, padded to 4
// as the others are. Error refused: a field does not fit the class, or a reader of the new contents
// would not find the same notes in them.
[[nodiscard]] Result<NewNotes> build_notes(const ElfFile& file, const ProbeFile& probes,
                                           std::span<const Section* const> sections,
                                           const NoteChanges& changes);

// The same of one section, rewritten notes with repaired_fields().
[[nodiscard]] Result<NewNotes> build_notes(const ElfFile& file, const ProbeFile& probes,
                                           const Section& section, std::span<const NoteFate> fates,
                                           VirtAddr base);

// The fields a repaired note has: location and semaphore as the file's real addresses, and `base`.
[[nodiscard]] NoteFields repaired_fields(const Probe& probe, VirtAddr base);

}  // namespace reprobe
