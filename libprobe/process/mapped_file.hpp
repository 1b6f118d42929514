// The file behind a mapping of a process, wherever its path leads by now.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libprobe/process/mapped_source.hpp"
#include "libprobe/process/process.hpp"

namespace reprobe {

// Finds the file that the mappings, all of one file, show. Errors: unreadable (why nobody, or only
// root, can read it), kSpecialFile.
[[nodiscard]] Result<OpenedFile> find_mapped(const Process& process,
                                             std::span<const Mapping> mappings);

struct MappedName {
  std::string path;  // as the process's mount namespace names it
  bool deleted{};    // or replaced: the path leads to the file no more
};

// What the file is called now.
[[nodiscard]] MappedName name_of(const Process& process, const Mapping& mapping,
                                 const OpenedFile& file);

}  // namespace reprobe
