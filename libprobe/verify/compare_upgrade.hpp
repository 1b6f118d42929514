// Proves that `reprobe fix --upgrade` changed only what it says: the records say what they said,
// the dynamic linker writes what it wrote but for their words, each note is of a record, and each
// call that became a nop was one of the header's. The rest of the file is compared as every
// rewrite's.
#pragma once

#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/compare.hpp"

namespace reprobe {

// Does the result have notes where the input has the records of SystemTap up to 1.3 alone?
[[nodiscard]] bool is_upgraded(const ElfFile& before, const ElfFile& after);

// Rules: verify-record, verify-relocation, verify-code, and those of compare().
[[nodiscard]] std::vector<Finding> compare_upgrade(const ElfFile& before, const ElfFile& after,
                                                   const CompareOptions& options);

}  // namespace reprobe
