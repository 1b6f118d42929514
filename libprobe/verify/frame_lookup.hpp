// The FDE that an unwinder finds for an address, with its rows.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/code/cfi_rows.hpp"
#include "libprobe/code/unwind_index.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// An FDE with its CIE and rows.
struct FoundFrame {
  CfiCie cie;
  CfiFde fde;
  CfiRows rows;
};

// Do frames of both have the same registers, and is neither or are both those of signal handlers?
[[nodiscard]] bool same_frame_kind(const CfiCie& a, const CfiCie& b);

// Looks up in one file, by entries that ascend.
class FrameLookup {
 public:
  FrameLookup(const ElfFile& file, std::span<const UnwindEntry> entries)
      : file_(&file), entries_(entries) {}

  // As libgcc searches: the last entry that does not begin behind the address, if its FDE reaches
  // there. nullptr: there is none.
  [[nodiscard]] const FoundFrame* find(VirtAddr address);
  // The FDE there; nullptr: it cannot be read, or too many were.
  [[nodiscard]] const FoundFrame* read(VirtAddr fde);
  // An FDE that was asked for could not be read.
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  const ElfFile* file_;
  std::span<const UnwindEntry> entries_;
  std::map<VirtAddr, std::optional<FoundFrame>> frames_;
  std::size_t rules_{};
  bool failed_{};
};

}  // namespace reprobe
