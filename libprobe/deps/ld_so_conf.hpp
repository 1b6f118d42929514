// /etc/ld.so.conf: one folder a line, "#" comments, "include" with globs.
// Source: ldconfig(8) and glibc's parse_conf() in elf/ldconfig.c.
#pragma once

#include <filesystem>
#include <vector>

#include "libprobe/deps/root.hpp"

namespace reprobe {

// The folders that it names, in order, each once; paths of the system under `root`, not yet placed.
// What cannot be read is left out; a file that is included twice is read once.
[[nodiscard]] std::vector<std::filesystem::path> configured_folders(const Root& root);

}  // namespace reprobe
