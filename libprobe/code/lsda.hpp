// Landing pads: where a thrown exception enters a function in its middle.
// Format: the language-specific data area of GCC's and LLVM's C++ personality (Itanium C++ ABI:
// Exception Handling, level II; libgcc unwind-c.c and libstdc++ eh_personality.cc read it).
#pragma once

#include <optional>
#include <vector>

#include "libprobe/code/eh_frame.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// An exception that is thrown at an address in [start, start + size) enters the function at `pad`.
struct CallSite {
  VirtAddr start;
  Size size;
  std::optional<VirtAddr> pad;  // nothing: it passes by
};

// The FDE's call-site table, in its order. Empty where it has no LSDA. Nothing where the LSDA
// cannot be read whole, or has more call sites than the code has bytes.
[[nodiscard]] std::optional<std::vector<CallSite>> call_sites(const ElfFile& file, const Fde& fde);

// Their landing pads, with duplicates.
[[nodiscard]] std::optional<std::vector<VirtAddr>> landing_pads(const ElfFile& file,
                                                                const Fde& fde);

}  // namespace reprobe
