// What .debug_frame says of stubs: debuggers find it there where nobody finds an entry at run time.
#pragma once

#include <span>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/frame_lookup.hpp"

namespace reprobe {

class DebugStubFrames {
 public:
  // The records of `after` that `before` lacks and that begin in the section `stubs`. All that is
  // new are such records, or of old code (compare_debug_frame()), in the one form that states what
  // they say; else there is a finding.
  DebugStubFrames(const ElfFile& before, const ElfFile& after, const Section& stubs,
                  std::vector<Finding>& out);

  // The record of an address; nullptr: there is none.
  [[nodiscard]] const FoundFrame* find(VirtAddr address) const;
  // Ascending.
  [[nodiscard]] std::span<const FoundFrame> all() const { return frames_; }

 private:
  std::vector<FoundFrame> frames_;
};

}  // namespace reprobe
