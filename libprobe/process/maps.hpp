// The mappings of a process, as /proc/PID/maps states them. Format: proc(5), proc_pid_maps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/error.hpp"

namespace reprobe {

struct Mapping {
  std::uint64_t start{};
  std::uint64_t end{};  // behind the last byte
  bool writable{};
  bool executable{};
  std::uint64_t offset{};  // in the file, bytes
  std::uint64_t device{};  // makedev(major, minor)
  std::uint64_t inode{};   // 0: no file
  std::string path;        // as the process's own mount namespace names it; "[heap]"; ""
  std::string written;     // the same as the kernel writes it: "\012" for a line feed, and what
                           // tells a file that is gone, though a file may be called so
  bool deleted{};          // the kernel says " (deleted)" behind the path; it is not in `path`

  [[nodiscard]] std::uint64_t size() const { return end - start; }
};

// The path without what the kernel writes behind the name of a file that is gone.
[[nodiscard]] std::string without_mark(std::string_view path);

// Does a path end with it?
[[nodiscard]] bool says_deleted(std::string_view path);

// The names that the file may have: what the kernel writes can mean several.
[[nodiscard]] std::vector<std::string> possible_paths(const Mapping& mapping);

// Error malformed: a line that is none of the format. Ascending, as the kernel writes them.
[[nodiscard]] Result<std::vector<Mapping>> parse_maps(std::string_view text);

}  // namespace reprobe
