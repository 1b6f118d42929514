// Two rewrites, of which the second was planned for the output of the first, as one plan.
#pragma once

#include "libprobe/elf/bytes.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

// A plan for `input` that gives what `second` makes of the output of `first`, an ELF file. Headers
// and names that the first appended and the second appended anew become zeros. Errors: internal;
// those of ElfFile::open().
[[nodiscard]] Result<Plan> compose(const ByteSource& input, const Plan& first, const Plan& second);

}  // namespace reprobe
