// What a rewrite of the notes may touch, section by section, and the bytes that follow from it.
#pragma once

#include <cstdint>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/verify/byte_ranges.hpp"
#include "libprobe/verify/section_match.hpp"

namespace reprobe {

// Bytes of `before` that may differ in `after`: the notes, the relocations kept for them, the
// header fields and symbols that follow them, and what a moved section header table leaves behind.
// What the headers and symbols then say is compared by the functions below.
[[nodiscard]] std::vector<Range> allowed_ranges(const ElfFile& before, const ElfFile& after,
                                                const SectionMatch& match, bool new_build_id);

// Compares the section header tables field by field: only the sections of the notes, .stapsdt.base
// and the places of sections that are not loaded may change, and only the sections that a repair
// adds may be new; with `new_build_id`, one for the build-id of a file that had none, too.
void compare_sections(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                      bool new_build_id, std::vector<Finding>& out);

// The symbols of sections that moved follow them, and no others.
void compare_symbols(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                     std::vector<Finding>& out);

}  // namespace reprobe
