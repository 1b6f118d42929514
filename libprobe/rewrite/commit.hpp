// Puts a checked result in the place of the file: a temporary file in the same folder, then a
// rename. Killed at any moment there is the old file or the new one.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "libprobe/rewrite/plan.hpp"

namespace reprobe {

struct CommitOptions {
  std::filesystem::path input;
  std::optional<std::filesystem::path> output;  // nothing: in place
  bool allow_hard_links{};     // --break-hardlinks: in place on a file with several names
  bool allow_signature{};      // --drop-signature: on a file with security.ima / security.evm
  bool allow_verity{};         // --drop-verity: on a file with fs-verity
  bool preserve_dates{};       // keep mtime and atime; otherwise mtime is now
};

// Refuses (ErrorCode::refused) what check_committable() refuses; mode, owner, ACLs, file
// capabilities, SELinux label and other xattrs are carried over. `check` sees the finished
// temporary file (a path that can be opened) before the rename, and its error stops it. Errors:
// io (no space, folder not writable), refused, whatever `check` returns. The input is untouched
// in every error case and no temporary file stays.
[[nodiscard]] Result<void> commit(
    const Plan& plan, const ByteSource& input, const CommitOptions& options,
    const std::function<Result<void>(const std::filesystem::path&)>& check);

// The refusals alone, for --dry-run.
[[nodiscard]] Result<void> check_committable(const CommitOptions& options);

}  // namespace reprobe
