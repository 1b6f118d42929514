// Instruction lengths and branches of the machines where a few bits tell both: AArch64, ARM and
// Thumb, PowerPC, s390x, RISC-V. They hold for instructions that are younger than any
// disassembler.
#pragma once

#include <cstdint>
#include <optional>

#include "libprobe/code/instruction.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// Do the rules know the machine (EM_*)?
[[nodiscard]] bool has_decode_rules(std::uint16_t machine);

// As Decoder::decode(). In Thumb an instruction's condition can come from an IT before it, which
// is not looked at: a jump there may be conditional.
[[nodiscard]] std::optional<Instruction> decode_by_rules(ByteView bytes, VirtAddr address,
                                                         const ElfHeader& header, bool thumb);

}  // namespace reprobe
