// A row of call frame information for the same instruction at another place.
#pragma once

#include <cstdint>

#include "libprobe/code/cfi_rows.hpp"

namespace reprobe {

// The row that holds where the code stands in a stub, with the stack pointer `adjust` bytes lower
// than in the original. Error: refused (a rule that reads the program counter, as those of .plt do;
// with an adjustment, one that reads the stack pointer in a way we cannot correct).
[[nodiscard]] Result<CfiRow> moved_row(const CfiRow& row, std::int64_t adjust,
                                       const ElfHeader& header);

}  // namespace reprobe
