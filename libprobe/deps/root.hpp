// Another system's files under a folder of this one. Its absolute paths and absolute symbolic links
// mean places inside the folder.
#pragma once

#include <filesystem>

namespace reprobe {

class Root {
 public:
  // "/" is this system: every path then stays as it is.
  explicit Root(const std::filesystem::path& folder = "/");

  // Where an absolute path of the other system is on this one, its symbolic links followed as they
  // are meant there. Of a path that does not exist, as far as it does.
  [[nodiscard]] std::filesystem::path place(const std::filesystem::path& path) const;

  // The same for a path of this system; one outside of the folder stays as it is.
  [[nodiscard]] std::filesystem::path place_real(const std::filesystem::path& path) const;

 private:
  std::filesystem::path folder_;  // without links; empty: this system
};

}  // namespace reprobe
