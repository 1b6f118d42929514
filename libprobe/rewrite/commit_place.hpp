// Which file a commit reads and which name it writes, once symbolic links are followed.
#pragma once

#include <sys/stat.h>

#include <string>

#include "libprobe/rewrite/commit.hpp"
#include "libprobe/rewrite/commit_fd.hpp"

namespace reprobe {

struct CommitPlace {
  UniqueFd input;      // open for reading
  struct stat status;  // of the input
  std::string path;    // the input, links followed
  bool in_place{};     // the output is the input, by whatever name
  UniqueFd folder;     // of the output
  std::string folder_path;
  std::string name;  // of the output in its folder
  bool exists{};     // there is an output already

  [[nodiscard]] std::string output_path() const;
};

// Errors: unreadable (the input is missing or not a regular file), io (the output's folder is
// missing, the output is something else than a regular file).
[[nodiscard]] Result<CommitPlace> find_commit_place(const CommitOptions& options);

// What a rewrite would silently lose: other names of the file, its signature, its verity.
[[nodiscard]] Result<void> refuse_losses(const CommitPlace& place, const CommitOptions& options);

// Does the input's path lead, at this moment, to that file in that state?
[[nodiscard]] bool leads_to(const CommitPlace& place, const FileStamp& stamp);

[[nodiscard]] FileStamp stamp_of(const struct stat& status);

}  // namespace reprobe
