// Notes, as LIEF sees them. LIEF 0.9 compares each note that it reads with all others: of a file
// with very many it is given a copy in which no header says that there are notes. That their bytes
// are the same is compared section by section all the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libprobe/verify/lief_items.hpp"

namespace reprobe::second_reader {

// SHT_NOTE, or what stands for it in a copy; likewise PT_NOTE.
[[nodiscard]] bool is_note_type(std::uint64_t type);
[[nodiscard]] bool is_note_segment(std::uint64_t type);

// Has one of the two files more notes than LIEF can read in a moment? No for what is no ELF file.
[[nodiscard]] bool has_many_notes(const std::string& before, const std::string& after);

// The file as LIEF reads it. Throws what LIEF throws, and std::runtime_error where it gives no
// file.
[[nodiscard]] std::unique_ptr<const lief::Binary> parse(const std::string& path, bool hide_notes);

// `changed`: names of the sections that may change, as in ExpectedChanges.
void compare_notes(const lief::Binary& before, const lief::Binary& after, const NameSet& changed,
                   Differences& out);

}  // namespace reprobe::second_reader
