// The check of a rewrite before it replaces the file: our own re-read, then LIEF's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/verify/compare.hpp"
#include "tool/options.hpp"
#include "tool/terminal.hpp"

namespace reprobe {

struct CheckOptions {
  CompareOptions options;
  SecondOpinionMode second_opinion{SecondOpinionMode::automatic};
  // Names of sections that may differ, besides those that both files show to have changed.
  std::vector<std::string> changed_sections{};
  // --payload=ignore: data behind the ELF file need not be its last bytes any more.
  bool ignored_payload{};
};

// LIEF reads files up to this size unless asked to always or never.
inline constexpr Size kSecondOpinionLimit{std::uint64_t{16} << 20};

// Findings of both readers about `after`. A second opinion that is unavailable is named with -v;
// with `always` it is a warning.
[[nodiscard]] Result<std::vector<Finding>> find_differences(
    const ElfFile& before, const std::filesystem::path& before_path,
    const std::filesystem::path& after, const CheckOptions& check, const Terminal& terminal);

// The same as an error (internal) naming the first difference.
[[nodiscard]] Result<void> check_result(const ElfFile& before,
                                        const std::filesystem::path& before_path,
                                        const std::filesystem::path& after,
                                        const CheckOptions& check, const Terminal& terminal);

}  // namespace reprobe
