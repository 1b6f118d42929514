#include "libprobe/rewrite/commit_temp.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <ctime>
#include <memory>

#include "libprobe/rewrite/commit_place.hpp"

namespace reprobe {
namespace {

constexpr std::string_view kPrefix = ".reprobe-";
constexpr std::string_view kSuffix = ".tmp";
constexpr std::size_t kDigits = 16;
constexpr std::array kInterruptions{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr mode_t kPrivate = 0600;  // until the owner and the mode of the input are set

std::string new_name() {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) {
    // Only to be unlike other processes' names: O_EXCL refuses a name that exists.
    random = static_cast<std::uint64_t>(::getpid()) << 32 ^
             static_cast<std::uint64_t>(std::time(nullptr));
  }
  return fmt::format("{}{:016x}{}", kPrefix, random, kSuffix);
}

bool is_our_name(std::string_view name) {
  return name.size() == kPrefix.size() + kDigits + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix) &&
         name.substr(kPrefix.size(), kDigits).find_first_not_of("0123456789abcdef") ==
             std::string_view::npos;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

std::string descriptor_path(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

// Without /proc an unnamed file can be neither checked by path nor given a name.
bool can_be_opened(const std::string& path, int fd) {
  struct stat by_path {};
  struct stat by_fd {};
  return ::stat(path.c_str(), &by_path) == 0 && ::fstat(fd, &by_fd) == 0 &&
         same_file(by_path, by_fd);
}

// open(2): EOPNOTSUPP from a file system without O_TMPFILE, EISDIR or ENOENT from a kernel
// without it. EINVAL comes from some FUSE file systems.
bool lacks_unnamed_files(int number) {
  return number == EOPNOTSUPP || number == EISDIR || number == ENOENT || number == EINVAL;
}

int link_then_rename(int folder, const char* from, const char* between, const char* to) {
  if (::linkat(AT_FDCWD, from, folder, between, AT_SYMLINK_FOLLOW) != 0) return errno;
  if (::renameat(folder, between, folder, to) == 0) return 0;
  const int number = errno;
  ::unlinkat(folder, between, 0);
  return number;
}

// There is no system call that puts an unnamed file in the place of another: it takes a name for
// the time between linkat and renameat. A child of its own process group makes these two calls:
// whoever kills this process with SIGKILL does not hit it, and no name stays.
int replace_in_child(int folder, const char* from, const char* between, const char* to) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::_exit(link_then_rename(folder, from, between, to));
  }
  // Out of processes: the same here, with the signals held back.
  int number = child < 0 ? link_then_rename(folder, from, between, to) : 0;
  if (child > 0) {
    int status = 0;
    pid_t waited;
    do waited = ::waitpid(child, &status, 0);
    while (waited < 0 && errno == EINTR);
    // Killed, or reaped by someone else (SIGCHLD ignored): the caller looks at the result.
    if (waited == child && WIFEXITED(status)) {
      number = WEXITSTATUS(status);
    } else {
      ::unlinkat(folder, between, 0);
      number = EIO;
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return number;
}

}  // namespace

Result<TempFile> TempFile::create(const CommitPlace& place) {
  const int fd = ::openat(place.folder.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kPrivate);
  if (fd < 0 && !lacks_unnamed_files(errno)) {
    return os_error(ErrorCode::io, "cannot write in the folder", place.folder_path, errno);
  }
  TempFile file(place);
  file.file_ = UniqueFd(fd);
  file.path_ = descriptor_path(fd);
  if (fd < 0 || !can_be_opened(file.path_, fd)) return create_named(place);
  // For the moment in which publish() gives it a name.
  static_cast<void>(::flock(fd, LOCK_EX | LOCK_NB));
  return file;
}

Result<TempFile> TempFile::create_named(const CommitPlace& place) {
  constexpr int kTries = 8;
  for (int i = 0; i < kTries; ++i) {
    TempFile file(place);
    const std::string name = new_name();
    file.file_ = UniqueFd(::openat(place.folder.get(), name.c_str(),
                                   O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kPrivate));
    if (!file.file_) {
      return os_error(ErrorCode::io, "cannot write in the folder", place.folder_path, errno);
    }
    file.name_ = name;
    file.path_ = place.folder_path + "/" + name;
    // Before the lock another run may have taken the file for a killed run's. A file system
    // without locks (ENOTSUP) cleans up nothing, and so takes nothing away either.
    const bool taken = ::flock(file.file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat status {};
    if (!taken && ::fstat(file.file_.get(), &status) == 0 && status.st_nlink == 1) return file;
  }
  return os_error(ErrorCode::io, "cannot write in the folder", place.folder_path, EBUSY);
}

TempFile::TempFile(TempFile&& other) noexcept
    : place_(other.place_),
      file_(std::move(other.file_)),
      name_(std::exchange(other.name_, {})),
      path_(std::move(other.path_)) {}

TempFile::~TempFile() {
  if (!name_.empty()) ::unlinkat(place_->folder.get(), name_.c_str(), 0);
}

int TempFile::replace_output() const {
  const int folder = place_->folder.get();
  if (!name_.empty()) {
    return ::renameat(folder, name_.c_str(), folder, place_->name.c_str()) == 0 ? 0 : errno;
  }
  if (!place_->exists) {
    if (::linkat(AT_FDCWD, path_.c_str(), folder, place_->name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      return 0;
    }
    if (errno != EEXIST) return errno;  // else made by somebody meanwhile: replaced
  }
  return replace_in_child(folder, path_.c_str(), new_name().c_str(), place_->name.c_str());
}

Result<void> TempFile::publish() {
  const int number = replace_output();
  struct stat output {};
  struct stat ours {};
  const bool in_place =
      ::fstatat(place_->folder.get(), place_->name.c_str(), &output, AT_SYMLINK_NOFOLLOW) == 0 &&
      ::fstat(file_.get(), &ours) == 0 && same_file(output, ours);
  // A child that was killed may have done its work.
  if (number != 0 && !in_place) {
    return os_error(ErrorCode::io, "cannot write", place_->output_path(), number);
  }
  name_.clear();
  if (!in_place) {
    return fail(ErrorCode::io, "",
                place_->output_path() +
                    " was written, but another program has put something else in its place");
  }
  // The name is durable after this. EBADF: the folder could not be opened for reading; EINVAL,
  // EROFS: a file system without it.
  if (::fsync(place_->folder.get()) != 0 && errno != EBADF && errno != EINVAL && errno != EROFS) {
    return os_error(ErrorCode::io,
                    "the new file is in place, but a crash of the system may bring back the old "
                    "one; cannot flush the folder of",
                    place_->output_path(), errno);
  }
  return {};
}

void remove_stale_temporaries(const CommitPlace& place) {
  const int listing = ::openat(place.folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (listing < 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(listing), ::closedir);
  if (!folder) {
    ::close(listing);
    return;
  }
  while (const dirent* entry = ::readdir(folder.get())) {
    if (!is_our_name(entry->d_name)) continue;
    const UniqueFd file(::openat(listing, entry->d_name,
                                 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    struct stat opened {};
    struct stat named {};
    if (file && ::fstat(file.get(), &opened) == 0 && S_ISREG(opened.st_mode) &&
        ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 &&
        ::fstatat(listing, entry->d_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        same_file(opened, named)) {
      ::unlinkat(listing, entry->d_name, 0);
    }
  }
}

HeldSignals::HeldSignals() {
  sigset_t held;
  ::sigemptyset(&held);
  ::sigaddset(&held, SIGXFSZ);
  for (const int signal : kInterruptions) ::sigaddset(&held, signal);
  ::pthread_sigmask(SIG_BLOCK, &held, &before_);
}

void HeldSignals::allow_interruption() {
  sigset_t mask = before_;
  ::sigaddset(&mask, SIGXFSZ);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

HeldSignals::~HeldSignals() {
  sigset_t too_large;
  ::sigemptyset(&too_large);
  ::sigaddset(&too_large, SIGXFSZ);
  const struct timespec now {};
  if (::sigismember(&before_, SIGXFSZ) == 0) ::sigtimedwait(&too_large, nullptr, &now);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool HeldSignals::interrupted() const {
  sigset_t pending;
  if (::sigpending(&pending) != 0) return false;
  for (const int signal : kInterruptions) {
    if (::sigismember(&before_, signal) == 0 && ::sigismember(&pending, signal) == 1) return true;
  }
  return false;
}

}  // namespace reprobe
