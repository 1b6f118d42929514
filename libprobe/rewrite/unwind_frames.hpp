// Inside UnwindWriter: what its parts hand to each other.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "libprobe/rewrite/unwind.hpp"

namespace reprobe {

// What goes into .eh_frame and .debug_frame alike.
struct UnwindWriter::Frames {
  struct Cie {
    CfiCie original;
    Bytes program;
  };
  std::map<VirtAddr, Cie> cies;  // by the original's address
  std::vector<StubFrame> stubs;

  // Also gives the offset of each FDE.
  [[nodiscard]] Result<Bytes> assemble(FrameSection::Kind kind, std::uint64_t place,
                                       const ElfHeader& header,
                                       std::vector<std::uint64_t>& fdes) const;
};

// FDEs that take the places of others in the search table.
struct UnwindWriter::SharedFrames {
  Frames merged;                     // each of two neighbouring functions
  Frames chunks;                     // each of many stubs
  std::vector<std::size_t> entries;  // of the table, ascending: the first of each merged pair
};

}  // namespace reprobe
