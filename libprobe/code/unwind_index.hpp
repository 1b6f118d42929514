// .eh_frame_hdr: the search table by which unwinders find an FDE at run time.
// Format: LSB Core 5.0, 10.6.2.
#pragma once

#include <cstdint>
#include <optional>
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
  // Who finds the entries at run time.
  enum class Found {
    by_table,         // PT_GNU_EH_FRAME
    by_registration,  // a static program's start-up code registers .eh_frame (crtstuff.c)
    not_at_all,       // a dynamic one without PT_GNU_EH_FRAME: debuggers alone read .eh_frame
  };
  Found found{Found::not_at_all};
  // The search table as it stands; nothing where .eh_frame was walked instead.
  struct Table {
    VirtAddr base;     // what its fields count from: .eh_frame_hdr
    VirtAddr entries;  // of the first entry
  };
  std::optional<Table> table;
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
// Entries alone, of a table at `base`. Error: the same.
[[nodiscard]] Result<void> append_unwind_entries(Bytes& bytes, std::span<const UnwindEntry> entries,
                                                 VirtAddr base, const ElfHeader& header);

// `target - from` as s32, the form of pcrel and datarel fields. Error: the same.
[[nodiscard]] Result<std::uint32_t> unwind_distance(VirtAddr target, VirtAddr from,
                                                    const ElfHeader& header);

}  // namespace reprobe
