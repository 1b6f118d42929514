#include "libprobe/rewrite/commit_place.hpp"

#include <fcntl.h>
#include <sys/xattr.h>

#include <utility>

#include "libprobe/rewrite/commit_inode.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

Result<void> open_input(const fs::path& path, CommitPlace& place) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer before it can be turned down.
  place.input = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!place.input || ::fstat(place.input.get(), &place.status) != 0) {
    return os_error(ErrorCode::unreadable, "cannot open", path.native(), errno);
  }
  if (!S_ISREG(place.status.st_mode)) {
    return fail(ErrorCode::unreadable, "", path.native() + " is not a regular file");
  }
  std::error_code error;
  place.path = fs::canonical(path, error).native();
  if (error) return os_error(ErrorCode::unreadable, "cannot open", path.native(), error.value());
  return {};
}

// The name that will be replaced or made. An existing symbolic link stays, its target is written,
// as with every other tool that is given an output name.
Result<fs::path> output_name(const fs::path& output, CommitPlace& place) {
  struct stat status {};
  if (::stat(output.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) {
      return fail(ErrorCode::io, "",
                  "cannot write " + output.native() + ": it exists and is not a regular file");
    }
    place.exists = true;
    place.in_place = status.st_dev == place.status.st_dev && status.st_ino == place.status.st_ino;
    std::error_code error;
    fs::path real = fs::canonical(output, error);
    if (error) return os_error(ErrorCode::io, "cannot write", output.native(), error.value());
    return real;
  }
  const int number = errno;
  if (number != ENOENT) return os_error(ErrorCode::io, "cannot write", output.native(), number);
  if (::lstat(output.c_str(), &status) == 0) {
    return fail(ErrorCode::io, "",
                "cannot write " + output.native() + ": it is a symbolic link to a missing file");
  }
  if (!output.has_filename()) {
    return os_error(ErrorCode::io, "cannot write", output.native(), EISDIR);
  }
  return output;
}

Result<void> open_folder(const fs::path& output, CommitPlace& place) {
  place.name = output.filename().native();
  place.folder_path = output.has_parent_path() ? output.parent_path().native() : ".";
  constexpr int kFlags = O_DIRECTORY | O_CLOEXEC;
  place.folder = UniqueFd(::open(place.folder_path.c_str(), O_RDONLY | kFlags));
  // A folder that may be written but not listed.
  if (!place.folder && errno == EACCES) {
    place.folder = UniqueFd(::open(place.folder_path.c_str(), O_PATH | kFlags));
  }
  if (!place.folder) {
    return os_error(ErrorCode::io, "cannot open the folder", place.folder_path, errno);
  }
  return {};
}

bool has_attribute(int fd, const char* name) { return ::fgetxattr(fd, name, nullptr, 0) >= 0; }

bool has_verity(int fd) {
  struct statx status {};
  return ::statx(fd, "", AT_EMPTY_PATH, 0, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_VERITY) != 0;
}

FileTime time_of(const struct timespec& time) {
  return {.seconds = time.tv_sec, .nanoseconds = time.tv_nsec};
}

}  // namespace

std::string CommitPlace::output_path() const {
  return folder_path == "." ? name : (fs::path(folder_path) / name).native();
}

FileStamp stamp_of(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = Size{static_cast<std::uint64_t>(status.st_size)},
          .modified = time_of(status.st_mtim),
          .changed = time_of(status.st_ctim)};
}

Result<FileStamp> file_stamp(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return os_error(ErrorCode::unreadable, "cannot open", path.native(), errno);
  }
  return stamp_of(status);
}

Result<CommitPlace> find_commit_place(const CommitOptions& options) {
  CommitPlace place{};
  if (const auto opened = open_input(options.input, place); !opened) {
    return tl::unexpected(opened.error());
  }
  fs::path output = place.path;
  if (options.output) {
    auto name = output_name(*options.output, place);
    if (!name) return tl::unexpected(name.error());
    output = std::move(*name);
  } else {
    place.in_place = place.exists = true;
  }
  if (const auto opened = open_folder(output, place); !opened) {
    return tl::unexpected(opened.error());
  }
  return place;
}

Result<void> refuse_losses(const CommitPlace& place, const CommitOptions& options) {
  if (place.in_place) {
    if (auto allowed = check_replaceable(place.input.get()); !allowed) return allowed;
  }
  if (place.in_place && place.status.st_nlink > 1 && !options.allow_hard_links) {
    return fail(ErrorCode::refused, "",
                "the file has " + std::to_string(place.status.st_nlink) +
                    " names (hard links) and only one of them would be rewritten",
                "--break-hardlinks rewrites this name and leaves the others as they are");
  }
  // Kernel Documentation/security/IMA-templates and evm: the hash or signature that the kernel
  // checks before it lets the file be executed or opened; it does not fit the rewritten bytes.
  for (const char* name : {"security.ima", "security.evm"}) {
    if (!options.allow_signature && has_attribute(place.input.get(), name)) {
      return fail(ErrorCode::refused, "",
                  std::string("the file carries a signature (") + name +
                      ") that would not fit its new contents",
                  "--drop-signature rewrites it without the signature");
    }
  }
  if (!options.allow_verity && has_verity(place.input.get())) {
    return fail(ErrorCode::refused, "", "the file is protected by fs-verity",
                "--drop-verity rewrites it without that protection");
  }
  return {};
}

bool leads_to(const CommitPlace& place, const FileStamp& stamp) {
  struct stat now {};
  return ::stat(place.path.c_str(), &now) == 0 && stamp_of(now) == stamp;
}

}  // namespace reprobe
