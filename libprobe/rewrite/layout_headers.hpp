// The program header table of a rewritten file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/plan.hpp"

namespace reprobe {

// Two PT_NOTE that can be one, so that the table has an entry to spare.
struct NotePair {
  std::size_t removed{};  // indices in the table
  std::size_t grown{};
  Segment merged;  // what the second becomes
};

// Finds such a pair: one covers exactly what PT_GNU_PROPERTY covers too, the other touches it, and
// a reader that pads to 4 meets the same notes in both as readers of each did. GNU ld makes them.
// The property's PT_NOTE is for glibc before 2.32 only: later ones read PT_GNU_PROPERTY.
[[nodiscard]] std::optional<NotePair> mergeable_notes(const ElfFile& file);

// May the table and the ELF header be changed where they are? Errors: refused (a size that the
// kernel does not take, numbering in section 0, a section that lies over either of them).
[[nodiscard]] Result<void> check_headers(const ElfFile& file);

// Bytes of a table with `count` entries.
[[nodiscard]] Size headers_size(const ElfFile& file, std::size_t count);

// The table's bytes. Error internal: a value does not fit the class.
[[nodiscard]] Result<Bytes> encode_headers(const ElfFile& file, std::span<const Segment> segments);

// Points the ELF header to a table elsewhere. Errors: see Plan::replace.
[[nodiscard]] Result<void> move_headers(Plan& plan, const ElfFile& file, FileOffset headers,
                                        std::size_t count);

}  // namespace reprobe
