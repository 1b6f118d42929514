// Android's packed relocations (lld's --pack-dyn-relocs=android and android+relr), which the dynamic
// linker of bionic reads instead of DT_REL, DT_RELA and DT_RELR.
// Format: bionic linker/linker_sleb128.h and linker_reloc_iterators.h.
#pragma once

#include <functional>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// Calls `f` for the place of each. False: a table cannot be read to its end.
[[nodiscard]] bool each_packed_place(const ElfFile& file, const std::function<void(VirtAddr)>& f);

}  // namespace reprobe
