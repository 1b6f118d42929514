// The new contents of one .note.stapsdt section: kept notes in their order, each at a new place.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libprobe/audit/probe.hpp"

namespace reprobe {

struct KeptNote {
  std::uint64_t old_offset{};  // in the section
  std::uint64_t old_size{};
  std::uint64_t new_offset{};
};

struct NewNotes {
  Bytes contents;
  std::vector<KeptNote> kept;  // foreign notes included, ascending
};

// What becomes of one probe's note.
enum class NoteFate { keep, rewrite, remove };

// `fates` has one entry per probe of the file. Notes of other owners stay, in order. Errors:
// internal (a field does not fit the class).
[[nodiscard]] Result<NewNotes> build_notes(const ElfFile& file, const ProbeFile& probes,
                                           const Section& section,
                                           const std::vector<NoteFate>& fates);

// The fields a repaired note has: location, base and semaphore as the file's real addresses.
[[nodiscard]] NoteFields repaired_fields(const Probe& probe, const ProbeFile& probes);

}  // namespace reprobe
