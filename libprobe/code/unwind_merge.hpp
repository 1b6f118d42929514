// Room for more entries in a search table that cannot grow: two neighbouring functions get one FDE.
// Their own FDEs stay where they are, for those who read the section .eh_frame.
#pragma once

#include <cstddef>
#include <vector>

#include "libprobe/code/unwind_frames.hpp"
#include "libprobe/code/unwind_index.hpp"

namespace reprobe {

struct MergedPair {
  std::size_t first{};               // index of the first one's entry; the second's is the next
  std::vector<FrameRows> functions;  // two
};

// Up to `wanted` pairs of neighbours that can share an FDE, ascending: without LSDA and
// personality, and with CIEs of that kind. The nearest below entry `end` are taken; `wanted` * 64
// entries and some more are looked at.
[[nodiscard]] std::vector<MergedPair> find_merged_pairs(const ElfFile& file,
                                                        const UnwindIndex& index, std::size_t end,
                                                        const FrameKind& kind, std::size_t wanted);

}  // namespace reprobe
