// The test of a word of data that stands behind the nops of a sled of the kind slot. x86-64.
#pragma once

#include <optional>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// The slot that the code at `at`, which is behind the nops, tests: one in the file's section of
// slots. Nothing where other code stands there.
[[nodiscard]] std::optional<VirtAddr> slot_tested_at(const ElfFile& file, VirtAddr at);

}  // namespace reprobe
