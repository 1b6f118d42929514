// A folder with a file to commit to, for the tests of commit().
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/rewrite/commit.hpp"

namespace reprobe::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "reprobe-XXXXXX").native();
    path_ = ::mkdtemp(pattern.data()) != nullptr ? pattern : std::string();
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// All names in the folder, hidden ones too, sorted, with a blank between.
inline std::string names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().native());
  }
  std::sort(names.begin(), names.end());
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : " ") + name;
  return joined;
}

inline Bytes bytes_of(std::string_view text) {
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
}

inline Result<void> accept(const std::filesystem::path&) { return {}; }

// Commits one edit: `text` at `offset`.
inline Result<void> commit_edit(
    const CommitOptions& options, std::uint64_t offset, std::string_view text,
    const std::function<Result<void>(const std::filesystem::path&)>& check = accept) {
  const auto source = map_file(options.input);
  if (!source) return tl::unexpected(source.error());
  Plan plan;
  if (auto planned = plan.replace(**source, FileOffset{offset}, bytes_of(text), "test"); !planned) {
    return planned;
  }
  return commit(plan, **source, options, check);
}

}  // namespace reprobe::testing
