// What every rewrite of code must leave alone: the loaded segments, the way functions unwind, and
// all bytes but those that were proven. What the new bytes do is compared elsewhere.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/byte_ranges.hpp"
#include "libprobe/verify/compare_process.hpp"

namespace reprobe {

class ImageComparer {
 public:
  // Findings go to `out`; all must outlive the comparer.
  ImageComparer(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out)
      : before_(before), after_(after), out_(out) {}

  // verify-undo: the record in the section gives the original back.
  void compare_undo(std::string_view section);
  // verify-segment, verify-section: every old segment and section has its place, one segment may
  // have grown; what is new lies elsewhere.
  void compare_segments();
  // verify-unwind: each address unwinds as it did, wherever its FDE stands now. Allows the search
  // table's bytes.
  void compare_unwind();
  // Bytes of the original that may differ: at an address, or all of the notes.
  void allow(VirtAddr at, Size size);
  void allow(FileOffset at, Size size);
  void allow_notes();
  // verify-bytes, and the rules of compare_process(): all others are the same, in the file and in
  // memory, but for headers whose meaning is compared, and symbols that follow them. To be called
  // last.
  void compare_bytes();

 private:
  void allow_note(const Section& section, Range range);
  void allow_headers();
  [[nodiscard]] std::vector<Range> new_sections() const;
  [[nodiscard]] bool same_contents(const Section& old, const Section& now) const;

  const ElfFile& before_;
  const ElfFile& after_;
  std::vector<Finding>& out_;
  std::vector<Range> allowed_;  // in the file
  ProcessClaims claims_{.bytes = {}, .room = true, .relocated = false};
};

}  // namespace reprobe
