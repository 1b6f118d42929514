// What becomes of the flags that an instruction leaves. A comparison may be exchanged for another
// one where nobody looks at more than the flag that both give alike. x86-64 only.
#pragma once

#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"

namespace reprobe {

enum class StatusFlag { none, zero, carry, carry_and_zero };

// Does the instruction read another status flag than this one?
[[nodiscard]] bool reads_more(StatusFlag flag, const CodeInstruction& code);
// Does it give every status flag a new value, or leave it undefined?
[[nodiscard]] bool overwrites_flags(const CodeInstruction& code);

// From `after` on, and until each path has written the status flags anew or left the function, is
// no other of them read than this? Flags are dead at calls, returns and entries of functions
// (System V ABI, x86-64, 3.2.1). False also where a path cannot be followed. `budget`: instructions
// that may still be looked at, for all questions about a file; reduced by what was.
[[nodiscard]] bool only_reads(StatusFlag flag, const CodeRanges& ranges, const FunctionFlow& flow,
                              VirtAddr after, std::uint64_t& budget);

}  // namespace reprobe
