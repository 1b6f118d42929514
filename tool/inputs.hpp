// From the paths of a command line to ELF files: plain files, folders, and members of archives
// (ar, tar, zip, cpio, deb, rpm, apk, container images; compressed or nested), whatever their names.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

struct WalkOptions {
  bool one_file_system{};
  std::vector<std::string> exclude{};  // globs of names or of whole paths
  bool layers{};                       // of container images: each for itself
};

struct InputHandlers {
  // `path` for people: "dist/libx.a(foo.o)".
  std::function<void(const std::string& path, std::shared_ptr<const ByteSource>)> on_elf;
  std::function<void(const std::string& path, const Error&)> on_error;
  std::function<void(const std::string& path)> on_visit;  // before each file, for progress
  // on_elf keeps what it is given: a descriptor for each would be too many.
  bool keeps_sources{};
  WalkOptions walk{};
};

// A file, or a folder that is a container image.
struct InputFile {
  std::string path;
  bool named{};  // by the user: anything else than ELF or an archive is an error
  std::size_t argument{};  // which of the paths it was found by
};

// Folders are walked in sorted order, files before folders. Symbolic links inside them are not
// followed, and only regular files are looked at, each once whatever its hard links.
void for_each_file(const std::vector<std::string>& paths, bool folders, const WalkOptions& options,
                   const std::function<void(InputFile)>& on_file,
                   const std::function<void(const std::string&, const Error&)>& on_error);

// The ELF files in one. What is neither ELF nor an archive is passed over unless it is named.
void for_each_elf_of(const InputFile& file, const InputHandlers& handlers);

// All of it for one path. With `folders` false a folder is an error.
void for_each_elf(const std::string& path, bool folders, const InputHandlers& handlers);

}  // namespace reprobe
