// A file that a process maps, opened so that neither it nor its owner can harm the reader: special
// files are not opened (to open a device can do something), and a file that is cut short meanwhile
// gives an error, where reading a mapping of it would raise SIGBUS.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {

// What tells two files, or two states of one, apart.
struct FileIdentity {
  std::uint64_t device{};
  std::uint64_t inode{};
  std::uint64_t size{};
  std::int64_t modified{};  // nanoseconds
  std::int64_t changed{};
  auto operator<=>(const FileIdentity&) const = default;
};

struct OpenedFile {
  FileIdentity identity;
  std::shared_ptr<const int> place;  // descriptor of O_PATH, closed with the last copy
};

// The `where` of the error that a special file gives.
inline constexpr std::string_view kSpecialFile = "special file";

// Finds the file; it is opened by mapped_source(). Error unreadable: it is not there, or is no
// regular file.
[[nodiscard]] Result<OpenedFile> find_regular(const std::filesystem::path& path);

// The file's bytes, each read once when it is first asked for. It needs no descriptor: thousands of
// files may be read at once. Not to be used by two threads at once. Error unreadable.
[[nodiscard]] Result<std::shared_ptr<const ByteSource>> mapped_source(const OpenedFile& file);

}  // namespace reprobe
