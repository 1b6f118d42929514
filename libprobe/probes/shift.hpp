// Was the file moved to other addresses after the link, and its notes left behind? prelink and
// objcopy --adjust-vma change the addresses of sections and segments; notes are not loaded, so
// nothing moves the addresses in them. Where .stapsdt.base is in the file it tells the distance
// (consumers.md, section 2); where the linker dropped it, the sites themselves must.
#pragma once

#include <cstdint>
#include <string>

#include "libprobe/elf/file.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {

struct Shift {
  std::uint64_t distance{};  // to add to the notes' addresses, modulo the word size; 0: none
  // The sites prove it: with the distance they stand on nops, without it they do not. False: it
  // is only possible, and no note that it would make a site may be called dangling.
  bool proven{};
  std::string evidence;
};

// Only for files without .stapsdt.base; ET_REL has no shift.
[[nodiscard]] Shift find_shift(const ElfFile& file, const NoteScan& scan);

// Does a nop that a probe macro emits stand there, in an executable section?
[[nodiscard]] bool is_site(const ElfFile& file, VirtAddr address);

}  // namespace reprobe
