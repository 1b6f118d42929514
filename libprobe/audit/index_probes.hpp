// The index of a file (.note.reprobe) beside its notes, and in their place where they are gone.
#pragma once

#include <optional>
#include <string>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// The probes that the index of a file states, each judged as a note is: where the file has no
// notes. A note's offset is that of the index, its section 0. Nothing where the file has notes, or
// no index with entries that can be read.
[[nodiscard]] std::optional<ProbeFile> read_index_probes(const ElfFile& file);

// How the index contradicts the notes of a file that has both: an index that cannot be read, or has
// another probe, or lacks one that is not dangling (where it is not an index of some of them).
// Nothing where it does not, and where it has no entries.
[[nodiscard]] std::optional<std::string> index_contradiction(const ElfFile& file,
                                                             const ProbeFile& probes);

}  // namespace reprobe
