// Rows become the program of an FDE.
#pragma once

#include <span>
#include <vector>

#include "libprobe/code/cfi_rows.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// What FDEs have in common: their CIE, without a personality routine, and what its program sets.
struct FrameKind {
  CfiCie cie;
  CfiRow initial;
};
// Whether FDEs of both can go with one CIE.
[[nodiscard]] bool same_kind(const FrameKind& a, const FrameKind& b);

// Code and the rows that hold in it.
struct FrameRows {
  VirtAddr start;
  Size size;
  std::vector<PlacedRow> rows;  // ascending; the first at `start`

  [[nodiscard]] VirtAddr end() const { return VirtAddr{start.value + size.value}; }
};

// The program of an FDE from the first part's start to the last one's end; parts ascend and do not
// overlap. Between parts the return address is undefined: an unwinder stops there, as it does where
// there is no FDE. Errors: refused (an offset or a distance that cannot be stated), internal (the
// program, read back, does not give the rows).
[[nodiscard]] Result<Bytes> frame_program(const ElfFile& file, const FrameKind& kind,
                                          std::span<const FrameRows> parts);
// The program of the kind's CIE.
[[nodiscard]] Result<Bytes> initial_program(const ElfHeader& header, const FrameKind& kind);

}  // namespace reprobe
