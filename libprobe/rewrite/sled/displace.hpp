// An instruction at another address, with the same meaning: what it refers to relative to its own
// address is encoded anew. x86-64 only.
#pragma once

#include <optional>
#include <string>

#include "libprobe/code/x86_operands.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// Why the instruction must stay where it is, in stable words; nothing where displace() can move it.
[[nodiscard]] std::optional<std::string> why_not_displaced(const CodeInstruction& instruction);

// Bytes that it takes elsewhere: branches get their longest form. Not for instructions that must
// stay.
[[nodiscard]] Size displaced_size(const CodeInstruction& instruction);

// `bytes`: the instruction as it stands. Errors: refused (it must stay; what it refers to is more
// than 2 GiB away), internal (`bytes` are not the instruction).
[[nodiscard]] Result<Bytes> displace(const CodeInstruction& instruction, ByteView bytes,
                                     VirtAddr to);

// `jmp rel32` (e9) at `from`. Error refused: more than 2 GiB.
inline constexpr std::uint64_t kJumpSize = 5;
[[nodiscard]] Result<Bytes> encode_jump(VirtAddr from, VirtAddr to);

// The 4 bytes of a relative operand that counts from `end`. Error refused: more than 2 GiB.
[[nodiscard]] Result<Bytes> encode_relative(VirtAddr end, VirtAddr to);

}  // namespace reprobe
