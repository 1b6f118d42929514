// Bytes of the result that belong to nothing any more: what a shorter or moved section leaves
// behind, and what stands between the parts that a repair appends.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/section_match.hpp"

namespace reprobe {

// The relocations that --emit-relocs keeps for the notes.
[[nodiscard]] bool is_note_relocations(const ElfFile& file, const Section& section);

// Leftovers of a section are as they were, or zeros; what is appended belongs to a section or is
// zeros.
void compare_leftovers(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                       std::vector<Finding>& out);

// Of what is appended alone.
void compare_appended(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out);

}  // namespace reprobe
