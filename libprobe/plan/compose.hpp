// Rewrites of what another rewrite gives, as one plan for the file that is there.
#pragma once

#include <string>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

// A plan for `input` that gives what `second` makes of the output of `first`, an ELF file. Headers
// and names that the first appended and the second appended anew become zeros; headers that the
// first changed in place and the second leaves for new ones stay as they were. Errors: internal;
// those of ElfFile::open().
[[nodiscard]] Result<Plan> compose(const ByteSource& input, const Plan& first, const Plan& second);

// A plan for `input` that gives `output`: what differs is replaced, and the end cut or appended.
[[nodiscard]] Result<Plan> plan_output(const ByteSource& input, const Bytes& output,
                                       const std::string& why);

}  // namespace reprobe
