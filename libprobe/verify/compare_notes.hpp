// The bytes of the notes. compare() proves that the result has the right probes; here each byte of
// a section of notes that changed is known: its notes are written canonically or are copies, they
// follow each other without gaps, and the relocations that --emit-relocs kept followed them.
#pragma once

#include <vector>

#include "libprobe/finding.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/verify/section_match.hpp"

namespace reprobe {

void compare_note_bytes(const ElfFile& before, const ProbeFile& old, const ElfFile& after,
                        const ProbeFile& now, std::vector<Finding>& out);

void compare_note_relocations(const ElfFile& before, const ProbeFile& old, const ElfFile& after,
                              const ProbeFile& now, std::vector<Finding>& out);

// The notes in the sections that a repair makes for those of other owners.
[[nodiscard]] NoteScan scan_foreign_section(const ElfFile& file);

}  // namespace reprobe
