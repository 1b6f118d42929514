// Which registers a DWARF expression reads. An expression of call frame information that reads the
// stack pointer or the program counter means another place when the code moves.
// Format: DWARF 4, 2.5 and 7.7.1.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// DWARF numbers; nothing where the expression has an operation whose operands or effects we do not
// know. Every operation counts, also those that a branch may skip.
[[nodiscard]] std::optional<std::set<std::uint64_t>> registers_read(ByteView expression,
                                                                    const ElfHeader& header);

}  // namespace reprobe
