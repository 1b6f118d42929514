// Where the dynamic linker looks for libraries: its own default folders, and the words that RPATH
// and RUNPATH may contain.
// Source: ld.so(8) and glibc's elf/dl-load.c; for musl its
// ldso/dynlink.c.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/deps/root.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

using Folders = std::vector<std::filesystem::path>;

// The folders that the dynamic linker searches last, without any configuration. Distributions build
// it with different ones: those of Debian's multiarch, of /lib64 and of plain /lib, in this order.
// A library for another class or machine is passed over there, so that more folders do no harm.
[[nodiscard]] Folders default_folders(const ElfHeader& header);

// musl: /etc/ld-musl-ARCH.path, or its three defaults; nothing where the interpreter is not musl's.
[[nodiscard]] std::optional<Folders> musl_folders(std::string_view interpreter, const Root& root);

// The values of $ORIGIN, $LIB and $PLATFORM for one file.
struct PathWords {
  std::filesystem::path origin;
  std::string lib;
  std::optional<std::string> platform;  // nothing: the processor decides, and it is not known here
};

// $LIB: "lib/x86_64-linux-gnu", "lib64" or "lib", by the folders that are there.
[[nodiscard]] std::string lib_word(const ElfHeader& header, const Root& root);
[[nodiscard]] std::optional<std::string> platform_word(const ElfHeader& header);

// A path of DT_NEEDED, DT_RPATH or DT_RUNPATH with its words replaced, placed in `root`; nothing
// where a word has no value. Words are as glibc's is_dst() reads them.
[[nodiscard]] std::optional<std::filesystem::path> expand_path(std::string_view path,
                                                               const PathWords& words,
                                                               const Root& root);

// A list of paths separated by colons; an empty one is the working folder. At most 4096.
[[nodiscard]] Folders expand_list(std::string_view list, const PathWords& words, const Root& root);

}  // namespace reprobe
