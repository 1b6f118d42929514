// What the kernel and the dynamic linker make of two files: every address has the same byte and the
// same protection, but for what was claimed, and the ELF header says the same.
#pragma once

#include <string_view>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/byte_ranges.hpp"

namespace reprobe {

struct ProcessClaims {
  // Bytes that may be others, as offsets in the input. Who claims them has compared them.
  std::vector<Range> bytes;
  // There may be new memory: where the input has none, or in the padding behind a segment.
  bool room{};
  // The dynamic linker writes where bytes are claimed: whoever claims them has compared that.
  bool relocated{};
};

// Rules: verify-header (a field of the ELF header other than where the tables are), verify-segment
// (a protection, or memory that is new or gone), verify-image (a byte that a process sees). Each
// names the address. Linear in the files' loaded bytes.
void compare_process(const ElfFile& before, const ElfFile& after, ProcessClaims claims,
                     std::vector<Finding>& out);

}  // namespace reprobe
