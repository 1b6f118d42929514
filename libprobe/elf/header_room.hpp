// What another tool does to a file that has no room behind its program headers.
#pragma once

#include "libprobe/elf/file.hpp"

namespace reprobe {

// patchelf (up to 0.18, rewriteSectionsLibrary) adds program headers to a position-independent file
// where the table is, and moves the sections that follow it out of the way, as long as one follows
// the other in the section header table. Where the first of that table stands elsewhere in the file,
// it overwrites what is behind the program headers, and the program dies. Measured with 0.14.3.
[[nodiscard]] bool is_overwritten_by_patchelf(const ElfFile& file);

}  // namespace reprobe
