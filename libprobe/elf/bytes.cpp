#include "libprobe/elf/bytes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace reprobe {
namespace {

Result<ByteView> slice_of(ByteView all, FileOffset offset, Size size, std::string_view what) {
  if (offset.value <= all.size() && size.value <= all.size() - offset.value)
    return all.subspan(static_cast<std::size_t>(offset.value),
                       static_cast<std::size_t>(size.value));
  const auto end = checked_add(offset.value, size.value);
  return fail(
      ErrorCode::unreadable, "",
      fmt::format("{} lies outside the file; expected {} bytes, found {:#x}", what,
                  end ? fmt::format("at least {:#x}", *end) : "more than 2^64", all.size()));
}

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(Bytes bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    return slice_of(bytes_, offset, size, what);
  }

 private:
  Bytes bytes_;
};

class BorrowedSource final : public ByteSource {
 public:
  explicit BorrowedSource(ByteView bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    return slice_of(bytes_, offset, size, what);
  }

 private:
  ByteView bytes_;
};

class MappedSource final : public ByteSource {
 public:
  MappedSource(void* start, std::size_t size) : start_(start), size_(size) {}
  MappedSource(const MappedSource&) = delete;
  MappedSource& operator=(const MappedSource&) = delete;
  ~MappedSource() override { munmap(start_, size_); }
  std::uint64_t size() const override { return size_; }
  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    return slice_of({static_cast<const std::byte*>(start_), size_}, offset, size, what);
  }

 private:
  void* start_;
  std::size_t size_;
};

// A descriptor that is closed on every way out.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

tl::unexpected<Error> system_failure(std::string_view what) {
  const int number = errno;
  return fail(ErrorCode::unreadable, "",
              fmt::format("{}: {}", what, std::generic_category().message(number)));
}

}  // namespace

std::shared_ptr<const ByteSource> memory_source(Bytes bytes) {
  return std::make_shared<MemorySource>(std::move(bytes));
}

std::shared_ptr<const ByteSource> borrowed_source(ByteView bytes) {
  return std::make_shared<BorrowedSource>(bytes);
}

Result<std::shared_ptr<const ByteSource>> map_file(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no meaning for regular files.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return system_failure("cannot be opened");
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return system_failure("cannot be examined");
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::unreadable, "",
                fmt::format("not a file to read; expected a regular file, found {}",
                            S_ISDIR(status.st_mode) ? "a directory" : "a special file"),
                S_ISDIR(status.st_mode) ? "reprobe audit walks folders" : "");
  // mmap refuses a length of 0.
  if (status.st_size == 0) return memory_source({});
  const auto size = narrow<std::size_t>(static_cast<std::uint64_t>(status.st_size));
  if (!size)
    return fail(ErrorCode::unreadable, "",
                fmt::format("too large to map; expected less than 4 GiB on a 32-bit system, "
                            "found {} bytes",
                            status.st_size));
  // Shared, although nothing is written: into a private mapping of a file that somebody traces the
  // kernel puts its breakpoints, whatever the protection (kernel/events/uprobes.c, valid_vma), and
  // the tool would take them for the file's bytes.
  void* start = mmap(nullptr, *size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (start == MAP_FAILED) return system_failure("cannot be mapped");
  return std::make_shared<MappedSource>(start, *size);
}

std::uint64_t load_uint(ByteView bytes, std::size_t at, unsigned width, std::endian order) {
  // Kept in release builds: a caller's mistake must not become a read outside the file.
  if (at > bytes.size() || width > bytes.size() - at) std::abort();
  std::uint64_t value = 0;
  for (unsigned i = 0; i < width; ++i) {
    const std::size_t place = order == std::endian::big ? i : width - 1 - i;
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + place]);
  }
  return value;
}

void store_uint(std::span<std::byte> bytes, std::size_t at, unsigned width, std::endian order,
                std::uint64_t value) {
  if (at > bytes.size() || width > bytes.size() - at) std::abort();
  for (unsigned i = 0; i < width; ++i) {
    const std::size_t place = order == std::endian::big ? width - 1 - i : i;
    bytes[at + place] = static_cast<std::byte>(value & 0xff);
    value >>= 8;
  }
}

ByteView as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace reprobe
