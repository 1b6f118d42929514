#include "tool/archive_stream.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

namespace reprobe {
namespace {

constexpr std::size_t kPiece = std::size_t{64} << 10;
// A member up to this is held in memory.
constexpr std::size_t kInMemory = std::size_t{4} << 20;
// No ELF file is larger; what says that it is would fill the disk.
constexpr std::uint64_t kMaxMember = std::uint64_t{16} << 30;

// A descriptor that is closed on every way out.
class MemberFile {
 public:
  MemberFile() = default;
  explicit MemberFile(int fd) : fd_(fd) {}
  MemberFile(const MemberFile&) = delete;
  MemberFile& operator=(const MemberFile&) = delete;
  MemberFile(MemberFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  MemberFile& operator=(MemberFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~MemberFile() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_{-1};
};

// Every format and filter by name: "all" has some that open files of this system (mtree) or start
// other programs (lrzip, grzip) where an archive tells them to.
ArchivePtr new_reader() {
  ArchivePtr a(archive_read_new());
  for (const auto filter :
       {archive_read_support_filter_gzip, archive_read_support_filter_bzip2,
        archive_read_support_filter_xz, archive_read_support_filter_lzma,
        archive_read_support_filter_zstd, archive_read_support_filter_lz4,
        archive_read_support_filter_compress, archive_read_support_filter_rpm}) {
    filter(a.get());
  }
  for (const auto format :
       {archive_read_support_format_ar, archive_read_support_format_cpio,
        archive_read_support_format_tar, archive_read_support_format_zip,
        archive_read_support_format_empty, archive_read_support_format_raw}) {
    format(a.get());
  }
  return a;
}

// Reads a file and keeps its descriptor open as long as the archive.
struct FileClient {
  MemberFile file;
  std::array<std::byte, kPiece> piece{};
};

la_ssize_t read_file(archive* a, void* client, const void** buffer) {
  auto& self = *static_cast<FileClient*>(client);
  for (;;) {
    const ssize_t got = read(self.file.get(), self.piece.data(), self.piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) archive_set_error(a, errno, "%s", std::generic_category().message(errno).c_str());
    *buffer = self.piece.data();
    return got;
  }
}

la_int64_t seek_file(archive*, void* client, la_int64_t offset, int whence) {
  const auto at = lseek(static_cast<FileClient*>(client)->file.get(), offset, whence);
  return at < 0 ? ARCHIVE_FATAL : at;
}

la_int64_t skip_file(archive*, void* client, la_int64_t request) {
  const int fd = static_cast<FileClient*>(client)->file.get();
  struct stat status {};
  const off_t here = lseek(fd, 0, SEEK_CUR);
  // Not beyond its end: that the file is cut short must be seen.
  if (here < 0 || fstat(fd, &status) != 0 || request > status.st_size - here) return 0;
  return lseek(fd, request, SEEK_CUR) < 0 ? 0 : request;
}

int close_file(archive*, void* client) {
  delete static_cast<FileClient*>(client);
  return ARCHIVE_OK;
}

// Reads a member of another archive, after the bytes that were read of it already.
struct MemberClient {
  archive* outer;
  Bytes head;
  UnpackBudget& budget;
  bool began{};
  std::array<std::byte, kPiece> piece{};
};

la_ssize_t read_outer(archive* a, void* client, const void** buffer) {
  auto& self = *static_cast<MemberClient*>(client);
  if (!std::exchange(self.began, true) && !self.head.empty()) {
    *buffer = self.head.data();
    return static_cast<la_ssize_t>(self.head.size());
  }
  const auto got = read_member(self.outer, self.piece, self.budget);
  if (!got) {
    archive_set_error(a, EIO, "%s", got.error().message.c_str());
    return -1;
  }
  *buffer = self.piece.data();
  return static_cast<la_ssize_t>(*got);
}

int close_member(archive*, void* client) {
  delete static_cast<MemberClient*>(client);
  return ARCHIVE_OK;
}

tl::unexpected<Error> io_failure(std::string_view what) {
  return fail(ErrorCode::io, "",
              fmt::format("{}: {}", what, std::generic_category().message(errno)),
              "TMPDIR names the folder of temporary files");
}

// /var/tmp, as /tmp is memory on many systems.
Result<MemberFile> nameless_file() {
  const char* folder = std::getenv("TMPDIR");
  if (folder == nullptr || *folder == '\0') folder = "/var/tmp";
  MemberFile file(open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600));
  if (file.get() >= 0) return file;
  std::string name = fmt::format("{}/reprobe-XXXXXX", folder);  // no O_TMPFILE on some filesystems
  file = MemberFile(mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) return io_failure("a large member needs a temporary file");
  unlink(name.c_str());
  return file;
}

Result<void> write_at(int fd, ByteView bytes, std::uint64_t offset) {
  // A hole costs no disk: a bomb is mostly zeros.
  if (std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; })) return {};
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return io_failure("a large member cannot be written to a temporary file");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return {};
}

Result<std::shared_ptr<const ByteSource>> unpack_to_file(archive* a, ByteView begun,
                                                         UnpackBudget& budget) {
  auto file = nameless_file();
  if (!file) return tl::unexpected(file.error());
  if (auto done = write_at(file->get(), begun, 0); !done) return tl::unexpected(done.error());
  std::uint64_t size = begun.size();
  Bytes piece(kPiece);
  for (;;) {
    const auto got = read_member(a, piece, budget);
    if (!got) return tl::unexpected(got.error());
    if (*got == 0) break;
    if (size + *got > kMaxMember) {
      return fail(ErrorCode::unreadable, "",
                  fmt::format("the member is too large to unpack; expected at most {} bytes, found "
                              "more",
                              kMaxMember),
                  "unpack the archive and name the file");
    }
    if (auto done = write_at(file->get(), ByteView(piece).first(*got), size); !done)
      return tl::unexpected(done.error());
    size += *got;
  }
  if (ftruncate(file->get(), static_cast<off_t>(size)) != 0)
    return io_failure("a large member cannot be written to a temporary file");
  return map_file(fmt::format("/proc/self/fd/{}", file->get()));
}

}  // namespace

// deflate, the best at zeros, makes 1032 bytes of one; what is no bomb stays under 100 as a whole.
UnpackBudget::UnpackBudget(std::uint64_t file_size) {
  constexpr std::uint64_t kLeast = std::uint64_t{32} << 30;
  constexpr std::uint64_t kTimes = 100;
  const bool fits = file_size < (std::numeric_limits<std::uint64_t>::max() - kLeast) / kTimes;
  left_ = fits ? kLeast + kTimes * file_size : std::numeric_limits<std::uint64_t>::max();
}

Result<void> UnpackBudget::take(std::uint64_t bytes) {
  if (bytes > left_) {
    left_ = 0;
    return fail(ErrorCode::unreadable, "",
                "the archive unpacks to more than 32 GiB and 100 times its size: a bomb",
                "unpack what is wanted of it and name the files");
  }
  left_ -= bytes;
  return {};
}

Error archive_error(archive* a) {
  const char* text = archive_error_string(a);
  return Error{ErrorCode::unreadable, "",
               fmt::format("the archive cannot be read: {}", text != nullptr ? text : "unknown"),
               ""};
}

Result<ArchivePtr> open_archive(const std::string& path, std::uint64_t& size) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no meaning for regular files.
  MemberFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0)
    return fail(ErrorCode::unreadable, "",
                fmt::format("cannot be read: {}", std::generic_category().message(errno)));
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::unreadable, "", "not a regular file");
  size = static_cast<std::uint64_t>(status.st_size);
  ArchivePtr a = new_reader();
  auto client = std::make_unique<FileClient>();
  client->file = std::move(file);
  archive_read_set_read_callback(a.get(), read_file);
  archive_read_set_seek_callback(a.get(), seek_file);
  archive_read_set_skip_callback(a.get(), skip_file);
  archive_read_set_close_callback(a.get(), close_file);
  archive_read_set_callback_data(a.get(), client.release());  // close_file deletes it
  if (archive_read_open1(a.get()) != ARCHIVE_OK) return tl::unexpected(archive_error(a.get()));
  return a;
}

Result<ArchivePtr> open_archive(ByteView bytes) {
  ArchivePtr a = new_reader();
  if (archive_read_open_memory(a.get(), bytes.data(), bytes.size()) != ARCHIVE_OK)
    return tl::unexpected(archive_error(a.get()));
  return a;
}

Result<ArchivePtr> open_member_archive(archive* outer, Bytes head, UnpackBudget& budget) {
  ArchivePtr a = new_reader();
  auto client = std::make_unique<MemberClient>(MemberClient{outer, std::move(head), budget});
  if (archive_read_open(a.get(), client.release(), nullptr, read_outer, close_member) !=
      ARCHIVE_OK)
    return tl::unexpected(archive_error(a.get()));
  return a;
}

Result<std::size_t> read_member(archive* a, std::span<std::byte> buffer, UnpackBudget& budget) {
  const la_ssize_t got = archive_read_data(a, buffer.data(), buffer.size());
  if (got < 0) return tl::unexpected(archive_error(a));
  const auto size = static_cast<std::size_t>(got);
  if (auto allowed = budget.take(size); !allowed) return tl::unexpected(allowed.error());
  return size;
}

Result<Bytes> read_member_head(archive* a, std::size_t size, UnpackBudget& budget) {
  Bytes bytes(size);
  std::size_t have = 0;
  while (have < size) {
    const auto got = read_member(a, std::span(bytes).subspan(have), budget);
    if (!got) return tl::unexpected(got.error());
    if (*got == 0) break;
    have += *got;
  }
  bytes.resize(have);
  return bytes;
}

bool is_raw(archive* a) { return archive_format(a) == ARCHIVE_FORMAT_RAW; }

bool is_compressed_stream(archive* a) {
  return is_raw(a) && archive_filter_code(a, 0) != ARCHIVE_FILTER_NONE;
}

// Deterministic ar (the default of binutils on many systems) writes the mode 644, without a type.
bool is_regular_entry(archive_entry* entry) {
  const auto type = archive_entry_filetype(entry);
  return (type == AE_IFREG || type == 0) && archive_entry_hardlink(entry) == nullptr;
}

std::string name_of_entry(archive_entry* entry) {
  const char* name = archive_entry_pathname(entry);
  return name != nullptr ? name : "?";  // not representable: no UTF-8
}

Result<std::shared_ptr<const ByteSource>> unpack_member(archive* a, Bytes head,
                                                        UnpackBudget& budget) {
  Bytes bytes = std::move(head);
  while (bytes.size() <= kInMemory) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kPiece);
    const auto got = read_member(a, std::span(bytes).subspan(before), budget);
    if (!got) return tl::unexpected(got.error());
    bytes.resize(before + *got);
    if (*got == 0) return memory_source(std::move(bytes));
  }
  return unpack_to_file(a, bytes, budget);
}

}  // namespace reprobe
