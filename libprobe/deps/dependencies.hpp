// The files that the dynamic linker loads for a program: its DT_NEEDED libraries, theirs, and its
// interpreter. As for a process without LD_LIBRARY_PATH, LD_PRELOAD and /etc/ld.so.preload.
// Source: ld.so(8); glibc's _dl_map_object() and open_verify() in elf/dl-load.c.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "libprobe/deps/root.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

struct Dependency {
  std::string name;                 // as DT_NEEDED or PT_INTERP states it
  std::filesystem::path path;       // where it was found, its own symbolic link not followed
  std::filesystem::path needed_by;  // the first file that asks for it
};

struct MissingDependency {
  std::string name;
  std::filesystem::path needed_by;
  std::string reason;
};

struct Dependencies {
  std::vector<Dependency> found;  // breadth first, as they are loaded; the interpreter last
  std::vector<MissingDependency> missing;
};

// `program` is the file's path on this system. Never fails: what is not found is in `missing`.
[[nodiscard]] Dependencies find_dependencies(const std::filesystem::path& program,
                                             const ElfFile& file, const Root& root);

}  // namespace reprobe
