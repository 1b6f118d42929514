#include "libprobe/elf/open_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

namespace reprobe {
namespace {

// A descriptor that is closed on every way out.
class OpenDescriptor {
 public:
  explicit OpenDescriptor(int fd) : fd_(fd) {}
  OpenDescriptor(const OpenDescriptor&) = delete;
  OpenDescriptor& operator=(const OpenDescriptor&) = delete;
  ~OpenDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

tl::unexpected<Error> read_failure(int number) {
  return fail(ErrorCode::unreadable, "",
              fmt::format("cannot be read: {}", std::generic_category().message(number)));
}

// Reads a few pieces with pread(), and maps the file once more than these are asked for.
class PieceSource final : public ByteSource {
 public:
  PieceSource(std::unique_ptr<const OpenDescriptor> file, std::size_t size)
      : file_(std::move(file)), size_(size) {}
  std::uint64_t size() const override { return size_; }

  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    if (mapped_) return mapped_->slice(offset, size, what);
    const auto end = checked_add(offset.value, size.value);
    // map_file()'s own words.
    if (!end || *end > size_) return map(offset, size, what);
    if (size.value == 0) return ByteView{};
    for (const Piece& piece : pieces_) {
      if (piece.start <= offset.value && *end <= piece.start + piece.bytes.size())
        return ByteView(piece.bytes)
            .subspan(static_cast<std::size_t>(offset.value - piece.start),
                     static_cast<std::size_t>(size.value));
    }
    if (pieces_.size() == kMostPieces || size.value > kLargestPiece) return map(offset, size, what);
    return read(offset.value, *end);
  }

 private:
  struct Piece {
    std::uint64_t start{};
    Bytes bytes;
  };
  // The header with the program headers, the section headers with their names before them, and
  // notes that stand elsewhere.
  static constexpr std::size_t kMostPieces = 4;
  static constexpr std::uint64_t kLargestPiece = 64 * 1024;
  // Linkers put the names of sections right before the section headers.
  static constexpr std::uint64_t kBefore = 1024;
  static constexpr std::uint64_t kLeast = 2048;

  Result<ByteView> read(std::uint64_t offset, std::uint64_t end) const {
    Piece piece;
    piece.start = offset - std::min(offset, kBefore);
    const std::uint64_t until = std::min<std::uint64_t>(size_, std::max(end, piece.start + kLeast));
    piece.bytes.resize(static_cast<std::size_t>(until - piece.start));
    std::size_t have = 0;
    while (have < piece.bytes.size()) {
      const ssize_t got = pread(file_->get(), piece.bytes.data() + have, piece.bytes.size() - have,
                                static_cast<off_t>(piece.start + have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return read_failure(errno);
      if (got == 0)
        return fail(ErrorCode::unreadable, "", "the file was cut short while it was read");
      have += static_cast<std::size_t>(got);
    }
    pieces_.push_back(std::move(piece));
    return ByteView(pieces_.back().bytes)
        .subspan(static_cast<std::size_t>(offset - pieces_.back().start),
                 static_cast<std::size_t>(end - offset));
  }

  // By the descriptor: the path may lead to another file by now.
  Result<ByteView> map(FileOffset offset, Size size, std::string_view what) const {
    auto mapped = map_file(fmt::format("/proc/self/fd/{}", file_->get()));
    if (!mapped) return tl::unexpected(mapped.error());
    mapped_ = std::move(*mapped);
    file_.reset();
    return mapped_->slice(offset, size, what);
  }

  mutable std::unique_ptr<const OpenDescriptor> file_;
  std::size_t size_;
  mutable std::vector<Piece> pieces_;  // moving one leaves its bytes where they are
  mutable std::shared_ptr<const ByteSource> mapped_;
};

}  // namespace

Result<std::shared_ptr<const ByteSource>> open_file(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no meaning for regular files.
  auto file = std::make_unique<const OpenDescriptor>(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  const bool usual = file->get() >= 0 && fstat(file->get(), &status) == 0 &&
                     S_ISREG(status.st_mode) && status.st_size > 0;
  const auto size = narrow<std::size_t>(static_cast<std::uint64_t>(status.st_size));
  // Empty, or no file to read: it says so.
  if (!usual || !size) return map_file(path);
  return std::make_shared<PieceSource>(std::move(file), *size);
}

}  // namespace reprobe
