#include "libprobe/process/mapped_source.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace reprobe {
namespace {

constexpr std::size_t kChunk = 4096;  // what is read at least

tl::unexpected<Error> cannot(const char* what) {
  return fail(ErrorCode::unreadable, "",
              fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

// Gives -1 where it cannot be opened.
int own_memory() {
  static const int descriptor = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  return descriptor;
}

// A mapping of the file, and room for a copy. The copy is made through /proc/self/mem: where the
// file has no page any more the kernel answers with an error instead of a signal.
class CopyingSource final : public ByteSource {
 public:
  CopyingSource(void* file, void* copy, std::size_t size)
      : file_(file), copy_(static_cast<std::byte*>(copy)), size_(size) {
    read_.resize((size + kChunk - 1) / kChunk);
  }
  CopyingSource(const CopyingSource&) = delete;
  CopyingSource& operator=(const CopyingSource&) = delete;
  ~CopyingSource() override {
    munmap(file_, size_);
    munmap(copy_, size_);
  }

  std::uint64_t size() const override { return size_; }
  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    if (offset.value > size_ || size.value > size_ - offset.value) {
      return fail(ErrorCode::unreadable, "", fmt::format("{} lies outside the file", what));
    }
    const auto begin = static_cast<std::size_t>(offset.value);
    const auto length = static_cast<std::size_t>(size.value);
    for (std::size_t at = begin / kChunk; at * kChunk < begin + length;) {
      std::size_t end = at;
      while (end * kChunk < begin + length && !read_[end]) ++end;
      if (!read_chunks(at, end)) {
        return fail(ErrorCode::unreadable, "",
                    fmt::format("{} cannot be read: the file was cut short meanwhile", what));
      }
      at = end + 1;
    }
    return ByteView(copy_ + begin, length);
  }

 private:
  // Those of [from, to), none of which was read.
  bool read_chunks(std::size_t from, std::size_t to) const {
    const std::size_t end = std::min(to * kChunk, size_);
    for (std::size_t at = from * kChunk; at < end;) {
      const auto place = reinterpret_cast<std::uintptr_t>(file_) + at;
      const ssize_t count = ::pread(own_memory(), copy_ + at, end - at, static_cast<off_t>(place));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      at += static_cast<std::size_t>(count);
    }
    std::fill(read_.begin() + static_cast<std::ptrdiff_t>(from),
              read_.begin() + static_cast<std::ptrdiff_t>(to), true);
    return true;
  }

  void* file_;
  std::byte* copy_;
  std::size_t size_;
  mutable std::vector<bool> read_;  // by chunk
};

Result<std::shared_ptr<const ByteSource>> copying_source(int descriptor, std::uint64_t file_size) {
  if (file_size == 0) return memory_source({});  // mmap refuses it
  const auto size = narrow<std::size_t>(file_size);
  if (!size) return fail(ErrorCode::unreadable, "", "too large to map");
  // Shared, for the reason that map_file() states.
  void* bytes = mmap(nullptr, *size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (bytes == MAP_FAILED) return cannot("cannot be mapped");
  void* copy = mmap(nullptr, *size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (copy == MAP_FAILED) {
    auto failed = cannot("cannot be mapped");
    munmap(bytes, *size);
    return failed;
  }
  return std::make_shared<CopyingSource>(bytes, copy, *size);
}

}  // namespace

Result<OpenedFile> find_regular(const std::filesystem::path& path) {
  const int place = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (place < 0) return cannot("cannot be opened");
  const std::shared_ptr<const int> held(new int(place), [](const int* descriptor) {
    ::close(*descriptor);
    delete descriptor;
  });
  struct stat status {};
  if (fstat(place, &status) != 0) return cannot("cannot be examined");
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::unreadable, std::string(kSpecialFile), "not a regular file");
  }
  constexpr std::int64_t kSecond = 1'000'000'000;
  const auto time = [](const timespec& t) { return t.tv_sec * kSecond + t.tv_nsec; };
  return OpenedFile{{status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
                     time(status.st_mtim), time(status.st_ctim)},
                    held};
}

Result<std::shared_ptr<const ByteSource>> mapped_source(const OpenedFile& file) {
  if (own_memory() < 0) return cannot("/proc/self/mem cannot be opened");
  const int descriptor = ::open(fmt::format("/proc/self/fd/{}", *file.place).c_str(),
                                O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return cannot("cannot be opened");
  auto source = copying_source(descriptor, file.identity.size);
  ::close(descriptor);
  return source;
}

}  // namespace reprobe
