// What instructions look like on each machine, as far as the ELF header tells.
#pragma once

#include <bit>
#include <cstdint>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// e_flags of a linked big-endian ARM file whose code is little-endian (ELF for the Arm
// Architecture, 4.4.1).
inline constexpr std::uint32_t EF_ARM_BE8 = 0x00800000;

// The byte order of instructions, which is not always that of the data.
[[nodiscard]] inline std::endian code_order(const ElfHeader& header) {
  switch (header.machine) {
    case EM_PPC64:
    case EM_S390:
      return header.order;
    case EM_ARM:
      return (header.flags & EF_ARM_BE8) != 0 ? std::endian::little : header.order;
    default:  // x86, AArch64 and RISC-V code is little-endian, whatever the data is
      return std::endian::little;
  }
}

}  // namespace reprobe
