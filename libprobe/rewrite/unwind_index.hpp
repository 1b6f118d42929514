// .eh_frame_hdr: the search table by which unwinders find an FDE at run time.
// Format: LSB Core 5.0, 10.6.2.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

struct UnwindEntry {
  VirtAddr start;  // of the code
  VirtAddr fde;
};

struct UnwindIndex {
  std::vector<UnwindEntry> entries;  // ascending; empty: no unwind information
  VirtAddr eh_frame;
  bool has_program_header{};  // PT_GNU_EH_FRAME
  // Of the search table as it stands: empty where .eh_frame was walked instead.
  VirtAddr table_address;
  Size table_size;
};

inline constexpr std::uint64_t kUnwindIndexHead = 12;  // bytes before the entries
inline constexpr std::uint64_t kUnwindIndexEntry = 8;

// Every FDE of the program: the search table's, or all of .eh_frame where there is no table
// (linkers leave it out when they cannot sort; a static program registers .eh_frame at its start).
// Error: refused (a table that is not sorted, an FDE that cannot be read: the new table would lack
// it).
[[nodiscard]] Result<UnwindIndex> read_unwind_index(const ElfFile& file);

// The table for an address. Error: refused (something lies more than 2 GiB away).
[[nodiscard]] Result<Bytes> write_unwind_index(std::span<const UnwindEntry> entries,
                                               VirtAddr eh_frame, VirtAddr address,
                                               const ElfHeader& header);

// `target - from` as s32, the form of pcrel and datarel fields. Error: refused.
[[nodiscard]] Result<std::uint32_t> unwind_distance(VirtAddr target, VirtAddr from,
                                                    const ElfHeader& header);

}  // namespace reprobe
