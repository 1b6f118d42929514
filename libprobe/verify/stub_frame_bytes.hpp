// The sections with the unwind tables of stubs, byte for byte.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "libprobe/code/unwind_index.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// What is wrong: .eh_frame.reprobe does not consist of the records of `added` and of nothing else,
// one states its rows in another way than the shortest, .debug_frame lacks them, or a new
// .eh_frame_hdr has other bytes than the head and the entries of `index`, which was read from it.
[[nodiscard]] std::vector<std::string> check_stub_frames(const ElfFile& before, const ElfFile& file,
                                                         const UnwindIndex& index,
                                                         std::span<const UnwindEntry> added);

}  // namespace reprobe
