// The section headers of a file whose code was rewritten, as debuggers and strippers see them.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// Each section of the input says what it said, under its number; the notes, the base, the symbols,
// .debug_frame and the section names may stand elsewhere, and so may what made room for program
// headers, with its contents. New are only the sections of stubs, their unwind tables and the undo
// record, and a loaded one lies in memory that is new. Rules: verify-section, verify-unwind.
void compare_code_sections(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out);

}  // namespace reprobe
