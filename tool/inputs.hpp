// From the paths of a command line to ELF files: plain files, folders, and members of archives
// (ar, tar, zip, deb, rpm, cpio; nested).
#pragma once

#include <functional>
#include <string>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

struct InputHandlers {
  // `path` for people: "dist/libx.a(foo.o)".
  std::function<void(const std::string& path, std::shared_ptr<const ByteSource>)> on_elf;
  std::function<void(const std::string& path, const Error&)> on_error;
  std::function<void(const std::string& path)> on_visit;  // before each file, for progress
  // on_elf keeps what it is given: a descriptor for each would be too many.
  bool keeps_sources{};
};

// A named file that is neither ELF nor an archive is an error; one met in a folder or an archive
// is passed over. Folders are walked in sorted order; symbolic links inside them are not
// followed. With `folders` false a folder is an error.
void for_each_elf(const std::string& path, bool folders, const InputHandlers& handlers);

}  // namespace reprobe
