#include "libprobe/facade/temporary_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

namespace reprobe {

Result<TemporaryFile> TemporaryFile::of(ByteView bytes) {
  std::error_code ignored;
  std::string name = (std::filesystem::temp_directory_path(ignored) / "reprobe-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) return fail(ErrorCode::io, name, std::strerror(errno));
  TemporaryFile made{name};
  int error = 0;
  while (!bytes.empty() && error == 0) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) error = errno;
  }
  if (close(file) != 0 && error == 0) error = errno;
  if (error != 0) return fail(ErrorCode::io, name, std::strerror(error));
  return made;
}

TemporaryFile::~TemporaryFile() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove(path_, ignored);
}

}  // namespace reprobe
