// Does a file make new processes that go on with its own code? Told by the names of the C library's
// functions that it takes from elsewhere or, linked statically, holds.
#pragma once

#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// The names, each once, in the order of the alphabet. Threads do not count. A library may be loaded
// by a program that forks: no name here does not say that its code is in no forked child.
[[nodiscard]] std::vector<std::string> fork_symbols(const ElfFile& file);

}  // namespace reprobe
