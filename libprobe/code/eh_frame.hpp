// Function ranges from unwind information: .eh_frame_hdr's binary search table where the file has
// one, otherwise one walk over .eh_frame.
// Format: LSB Core 5.0, 10.5 (pointer encodings) and 10.6 (.eh_frame, .eh_frame_hdr).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// The range one FDE describes.
struct Fde {
  VirtAddr start;
  Size size;        // never 0
  bool has_lsda{};  // the code has landing pads or exception specifications
  // Where they are described (lsda.hpp); nothing where there are none, or where the pointer cannot
  // be read.
  std::optional<VirtAddr> lsda;
};

class UnwindTable {
 public:
  // Nothing where the file has no unwind information that can be read (none at all, ET_REL, a
  // debug file, unknown pointer encodings). The views live as long as the file.
  [[nodiscard]] static std::optional<UnwindTable> open(const ElfFile& file);

  // The FDE that covers the address. O(log n).
  [[nodiscard]] std::optional<Fde> find(VirtAddr address) const;

  // The FDEs that start in [first, end), by start. One that cannot be read is given with size 1 and
  // an LSDA that cannot be read either. O(log n) and what it gives.
  [[nodiscard]] std::vector<Fde> starting_in(VirtAddr first, VirtAddr end) const;

 private:
  explicit UnwindTable(const ElfFile& file) : file_(&file) {}

  [[nodiscard]] VirtAddr table_field(std::size_t at) const;

  const ElfFile* file_;
  // Either the table of .eh_frame_hdr: pairs of s32 (function, FDE), relative to header_address_,
  ByteView search_table_;
  VirtAddr header_address_;
  // or, where there is none, every FDE by its start.
  std::vector<Fde> walked_;
};

}  // namespace reprobe
