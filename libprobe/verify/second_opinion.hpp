// LIEF as an independent second reader, in a forked child with a time and a memory limit: it must
// never read hostile bytes in our own process.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "libprobe/elf/types.hpp"

namespace reprobe {

struct SecondOpinionLimits {
  std::chrono::seconds time{60};  // 0 .. a day; 0 gives no time at all
  // More than this process has now; not under sanitizers.
  Size memory{std::uint64_t{512} << 20};
};

struct SecondOpinion {
  enum class State { agrees, differs, unavailable } state{State::unavailable};
  std::string detail;                    // why unavailable: "LIEF crashed (signal 11)", ...
  std::vector<std::string> differences;  // one line each; empty unless `differs`
};

// What may differ.
struct ExpectedChanges {
  // By name: their address, size, offset, alignment, flags, place among the headers and contents
  // may differ, they may be there in one file only, and their symbols in .symtab move with them. Of
  // notes those of the type stapsdt may differ (of every owner but GNU where a .note section is
  // named), and the build-id where ".note.gnu.build-id" is named.
  std::vector<std::string> sections;
  // The file was given room: a PT_LOAD may have grown, others may be new, what notes and the
  // interpreter's name mean may stand elsewhere, as may the program headers and the table of
  // PT_GNU_EH_FRAME; stubs may have symbols, FUNCTION.sled.
  bool more_room{};
  // Segments of data may stand elsewhere in the file, with the bytes that they had.
  bool moved_data{};
};

// LIEF reads both files; header, segments, sections and their contents, symbols, dynamic entries,
// relocations and notes must be equal but for `expected`. `differs` also where LIEF reads the file
// before but throws at the file after; `unavailable` where it cannot read the file before, crashes
// or meets a limit, and where reprobe was built without LIEF. The paths are opened in the child: /proc/self/fd/N works.
[[nodiscard]] SecondOpinion second_opinion(const std::filesystem::path& before,
                                           const std::filesystem::path& after,
                                           const ExpectedChanges& expected,
                                           const SecondOpinionLimits& limits = {});

}  // namespace reprobe
