// Does a function return to another place than behind the call? verify's own reading of it.
#pragma once

#include "libprobe/elf/file.hpp"

namespace reprobe {

// The function at the address writes over the address on top of the stack that it was entered with,
// or takes it off, in one of its first instructions on any way. x86-64.
[[nodiscard]] bool changes_its_return(const ElfFile& file, VirtAddr function);

}  // namespace reprobe
