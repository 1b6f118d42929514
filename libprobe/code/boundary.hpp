// Is a site at an instruction boundary of its function? Decided by decoding from the function's
// start (Capstone), once for all sites of one function.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/functions.hpp"

namespace reprobe {

enum class Boundary {
  yes,
  no,       // inside another instruction; the whole function decodes and its direct branches agree
  unknown,  // no bytes, no function, no decoder, undecodable bytes, or branches that contradict
};

struct BoundaryCheck {
  Boundary result{Boundary::unknown};
  std::string detail;  // for `no`: "inside mov at 0x1234 (7 bytes)"; for unknown: why
  // The site can only be reached by falling out of a ret/jmp or trap before it, and no direct
  // branch of the function targets it or the nops before it: it looks like padding. Only set
  // where the whole function decoded.
  bool after_terminator{};
};

// One answer per site; every site lies in [function.start, +size).
[[nodiscard]] std::vector<BoundaryCheck> check_boundaries(const ElfFile& file,
                                                          const Function& function,
                                                          std::uint32_t section,
                                                          std::span<const VirtAddr> sites);

}  // namespace reprobe
