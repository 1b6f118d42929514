// Two rewrites, of which the second was planned for the output of the first, as one plan.
#pragma once

#include "libprobe/rewrite/plan.hpp"

namespace reprobe {

// `between`: the output of `first`, an ELF file. What `first` appends and `second` appends anew,
// the section headers and names, is zeros in the result. Errors: internal; those of
// ElfFile::open().
[[nodiscard]] Result<Plan> compose(const ByteSource& input, const Plan& first,
                                   const ByteSource& between, const Plan& second);

}  // namespace reprobe
