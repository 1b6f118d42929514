// Two plans as one: the second was made for the output of the first.
#pragma once

#include "libprobe/elf/bytes.hpp"
#include "libprobe/rewrite/plan.hpp"

namespace reprobe {

// A plan for `input` that gives what `second` makes of the output of `first`. Headers and names
// that the first appended and the second appended anew become zeros. Errors: internal.
[[nodiscard]] Result<Plan> compose(const ByteSource& input, const Plan& first, const Plan& second);

}  // namespace reprobe
