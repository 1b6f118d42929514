// What `reprobe fix --symbols` adds: a group of local symbols, one at each live probe's site, in a
// copy of .symtab or a table of their own, and the record that takes them out again.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// The file that the record of `after` gives back. Errors: those of plan_undo() and ElfFile::open().
[[nodiscard]] Result<ElfFile> without_site_symbols(const ElfFile& after);

// Rules: verify-undo (the record does not give `before` back), verify-bytes and those of
// compare_process() (anything else than the place of the section headers changed), verify-section
// (a header or a symbol that is none of these).
[[nodiscard]] std::vector<Finding> compare_site_symbols(const ElfFile& before,
                                                        const ElfFile& after);

}  // namespace reprobe
