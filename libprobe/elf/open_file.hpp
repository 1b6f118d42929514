// A file for a look at a few of its bytes: most files of a system have no probes, and to map one
// costs more than to read the headers that say so.
#pragma once

#include <filesystem>
#include <memory>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {

// The bytes of map_file(): the first small pieces are read, and the file is mapped only where more
// is asked for. Not for several threads at once. A descriptor stays open until the file is mapped:
// for files that are looked at one after the other. Errors: as map_file(); a file that is cut short
// before it is mapped is an error of slice().
[[nodiscard]] Result<std::shared_ptr<const ByteSource>> open_file(
    const std::filesystem::path& path);

}  // namespace reprobe
