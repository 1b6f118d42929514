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
  std::chrono::seconds time{60};
  Size memory{std::uint64_t{2} << 30};
};

struct SecondOpinion {
  enum class State { agrees, differs, unavailable } state{State::unavailable};
  std::string detail;                    // why unavailable: "LIEF crashed (signal 11)", ...
  std::vector<std::string> differences;  // one line each; empty unless `differs`
};

// LIEF reads both files; segments, sections, symbols, dynamic entries and notes must be equal
// except for: sections named in `changed_sections` (their size, offset, alignment, flags and
// contents may differ) and notes of the type stapsdt.
[[nodiscard]] SecondOpinion second_opinion(const std::filesystem::path& before,
                                           const std::filesystem::path& after,
                                           const std::vector<std::string>& changed_sections,
                                           const SecondOpinionLimits& limits = {});

}  // namespace reprobe
