// Bytes as a file for readers that want a path; gone with the object.
#pragma once

#include <filesystem>
#include <utility>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

class TemporaryFile {
 public:
  // Error: io.
  [[nodiscard]] static Result<TemporaryFile> of(ByteView bytes);
  TemporaryFile(TemporaryFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFile(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
};

}  // namespace reprobe
