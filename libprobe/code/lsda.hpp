// Landing pads: where a thrown exception enters a function in its middle.
// Format: the language-specific data area of GCC's and LLVM's C++ personality (Itanium C++ ABI:
// Exception Handling, level II; libgcc unwind-c.c and libstdc++ eh_personality.cc read it).
#pragma once

#include <optional>
#include <vector>

#include "libprobe/code/eh_frame.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// The landing pads of the FDE's call-site table, in its order, with duplicates. Empty where it has
// no LSDA. Nothing where the LSDA cannot be read whole, or has more call sites than the code has
// bytes.
[[nodiscard]] std::optional<std::vector<VirtAddr>> landing_pads(const ElfFile& file,
                                                                const Fde& fde);

}  // namespace reprobe
