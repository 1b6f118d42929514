// What a rewrite of the notes may touch, section by section, and the bytes that follow from it.
#pragma once

#include <cstdint>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

struct Range {
  std::uint64_t begin{};
  std::uint64_t end{};
};

// Bytes of `before` that may differ in `after`: the notes, the relocations kept for them, the
// header fields that follow them, and what a moved section header table leaves behind.
[[nodiscard]] std::vector<Range> allowed_ranges(const ElfFile& before, const ElfFile& after,
                                                bool new_build_id);

// Compares the section header tables field by field: only the sections of the notes may change,
// and only .stapsdt.base may be new.
void compare_sections(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out);

}  // namespace reprobe
