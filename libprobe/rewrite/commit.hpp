// Puts a checked result in the place of the file: a temporary file in the same folder, then a
// rename. Killed at any moment there is the old file or the new one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "libprobe/plan/plan.hpp"

namespace reprobe {

struct FileTime {
  std::int64_t seconds{};  // since the epoch
  std::int64_t nanoseconds{};
  bool operator==(const FileTime&) const = default;
};

// What tells that a path still leads to the same, unchanged file.
struct FileStamp {
  std::uint64_t device{};
  std::uint64_t inode{};
  Size size;
  FileTime modified;  // mtime
  FileTime changed;   // ctime
  bool operator==(const FileStamp&) const = default;
};

// Error unreadable: there is no such file.
[[nodiscard]] Result<FileStamp> file_stamp(const std::filesystem::path& path);

struct CommitOptions {
  std::filesystem::path input;
  std::optional<std::filesystem::path> output{};  // nothing: in place
  std::optional<FileStamp> stamp{};  // taken before `input` was mapped: a change since is refused
  bool allow_hard_links{};           // --break-hardlinks: in place on a file with several names
  bool allow_signature{};            // --drop-signature: on a file with security.ima / security.evm
  bool allow_verity{};               // --drop-verity: on a file with fs-verity
  bool preserve_dates{};             // keep mtime and atime; otherwise mtime is now
  // The last bytes of the input, of which the plan knows nothing, stay the last.
  Size last{};
};

// Refuses (ErrorCode::refused) what check_committable() refuses, and an input that another
// program changes meanwhile. Mode, owner, ACLs, file capabilities, SELinux label and other
// xattrs are carried over: in place, one that cannot be kept is refused; with an output, what
// this user may not set (another owner) is left out, and set-id bits with it. `check` sees the
// finished temporary file (a path that this process and its forked children can open) before
// the rename, and its error stops it. A plan without edits writes nothing in place and copies
// the file to another output. Other errors: unreadable (the input is not a regular file), io
// (no space, folder not writable), internal (the plan is not of this input), whatever `check`
// returns. The input is untouched in every error case but those whose message says that the new
// file is in place, and no temporary file stays. A symbolic link stays and its target is rewritten.
// Forks for a moment to replace an existing file.
[[nodiscard]] Result<void> commit(
    const Plan& plan, const ByteSource& input, const CommitOptions& options,
    const std::function<Result<void>(const std::filesystem::path&)>& check);

// The refusals alone, for --dry-run.
[[nodiscard]] Result<void> check_committable(const CommitOptions& options);

}  // namespace reprobe
