// The check of a result: this library's own reading, then LIEF's.
#pragma once

#include <filesystem>

#include "reprobe/reprobe.hpp"

namespace reprobe {

// LIEF reads files up to this size unless asked to always or never.
inline constexpr Size kSecondOpinionLimit{std::uint64_t{16} << 20};

// `before_path` leads to the bytes of `before`: LIEF opens it. Errors: unreadable, not_elf.
[[nodiscard]] Result<Verdicts> check(const ElfFile& before,
                                     const std::filesystem::path& before_path,
                                     const std::filesystem::path& after,
                                     const VerifyRequest& request);

}  // namespace reprobe
