// Where the separate debug file of a program lies: --from-debug=auto.
#pragma once

#include <string>

#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"
#include "tool/options.hpp"

namespace reprobe {

// Looks by the build-id under /usr/lib/debug, by .gnu_debuglink beside the file, in its folder
// .debug and under /usr/lib/debug, and asks debuginfod-find(1) where that is installed. What is
// found has the file's build-id. Errors: refused (no build-id), unreadable (no such file).
[[nodiscard]] Result<std::string> find_debug_file(const std::string& path, const ElfFile& file);

// The options with that path in the place of "auto". Errors: as find_debug_file().
[[nodiscard]] Result<FixCommandOptions> with_debug_file(const FixCommandOptions& options);

}  // namespace reprobe
