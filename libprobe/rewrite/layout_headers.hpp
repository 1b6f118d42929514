// The program header table of a rewritten file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

// A program header that a file can do without, so that the table has an entry to spare.
struct SpareHeader {
  std::size_t index{};               // in the table
  std::optional<Segment> widened{};  // another entry that takes over what it says
};

// - PT_PHDR of a file without PT_INTERP, where GNU ld makes none: a dynamic program's l_addr comes
//   from it (glibc rtld_setup_main_map), everybody else looks at e_phoff or AT_PHDR.
// - One of two PT_NOTE that touch, where a reader that pads to 4 meets the same notes in both
//   together as readers of each did. patchelf makes such pairs; GNU ld where one of them covers
//   what PT_GNU_PROPERTY covers too. (Then glibc before 2.32 misses the property, which it reads
//   from a PT_NOTE aligned to 8 only, for IBT and SHSTK, which no kernel of its time had.)
[[nodiscard]] std::optional<SpareHeader> spare_header(const ElfFile& file);

// May the table and the ELF header be changed where they are? Errors: refused (a size that the
// kernel does not take, numbering in section 0, a section that lies over either of them).
[[nodiscard]] Result<void> check_headers(const ElfFile& file);

// Bytes of a table with `count` entries.
[[nodiscard]] Size headers_size(const ElfFile& file, std::size_t count);

// The table's bytes. Error internal: a value does not fit the class.
[[nodiscard]] Result<Bytes> encode_headers(const ElfFile& file, std::span<const Segment> segments);

// Changes e_phoff and e_phnum. Errors: see Plan::replace.
[[nodiscard]] Result<void> point_to_headers(Plan& plan, const ElfFile& file, FileOffset headers,
                                            std::size_t count);

}  // namespace reprobe
