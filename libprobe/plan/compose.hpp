// Rewrites of what another rewrite gives, as one plan for the file that is there.
#pragma once

#include <string>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

// What becomes of headers and names that the first rewrite appended and the second appended anew.
enum class Leftovers {
  clear,  // they become zeros, and headers that the second leaves for new ones are as they were
  keep,   // a record of the second gives the output of the first back
};

// A plan for `input` that gives what `second` makes of the output of `first`, an ELF file. Errors:
// internal; those of ElfFile::open().
[[nodiscard]] Result<Plan> compose(const ByteSource& input, const Plan& first, const Plan& second,
                                   Leftovers leftovers = Leftovers::clear);

// A plan for `input` that gives `output`: what differs is replaced, and the end cut or appended.
[[nodiscard]] Result<Plan> plan_output(const ByteSource& input, const Bytes& output,
                                       const std::string& why);

}  // namespace reprobe
