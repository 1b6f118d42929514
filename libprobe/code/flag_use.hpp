// What becomes of the flags that an instruction leaves. A comparison may be exchanged for another
// one of the same outcome where nobody looks at more than whether it found equality. x86-64 only.
#pragma once

#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"

namespace reprobe {

// From `after` on, and until each path has written the status flags anew or left the function, is
// ZF the only one of them that is read? Flags are dead at calls, returns and entries of functions
// (System V ABI, x86-64, 3.2.1). False also where a path cannot be followed.
[[nodiscard]] bool only_equality_is_read(const CodeRanges& ranges, const FunctionFlow& flow,
                                         VirtAddr after);

}  // namespace reprobe
