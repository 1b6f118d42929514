// Lengths of x86 instructions, without knowing what they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/types.hpp"

namespace reprobe {

// An instruction longer than this raises #GP (Intel SDM volume 2, 2.3.11).
inline constexpr std::size_t kLongestX86 = 15;

// Operand-size, address-size and segment prefixes.
[[nodiscard]] bool is_size_or_segment_prefix(std::byte byte);

// Bytes of a ModRM operand (ModRM, SIB, displacement) that starts at `at`. `address16`: in the
// 16-bit address forms, which a 67 prefix selects in 32-bit code (Intel SDM volume 2, tables 2-1
// to 2-3). 0 where it is cut off.
[[nodiscard]] std::size_t modrm_size(ByteView bytes, std::size_t at, bool address16);

// The length of an instruction in those parts of the opcode map that still grow, so that a
// disassembler may not know it: VEX and EVEX, 0F 38, 0F 3A, and the groups 0F 01, 0F 1E, 0F AE,
// 0F C7. Its form follows from the map alone, and none of them is a branch. Nothing for all
// others.
[[nodiscard]] std::optional<Size> x86_length_by_map(ByteView bytes, bool is64);

// ud0 and ud1 have a ModRM operand (Intel SDM volume 2, UD). Capstone 4 reads them without it;
// clang's -fsanitize-trap emits ud1 with one that names the check.
[[nodiscard]] bool is_x86_ud(ByteView bytes, bool is64);
// The length of such an instruction; nothing where it is cut off.
[[nodiscard]] std::optional<Size> x86_ud_length(ByteView bytes, bool is64);

}  // namespace reprobe
