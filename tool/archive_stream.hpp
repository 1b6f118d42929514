// An archive opened for reading through libarchive: a file, bytes in memory, or the member of another
// archive at which that one stands.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <cstdint>
#include <memory>
#include <string>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

struct ArchiveCloser {
  void operator()(archive* a) const { archive_read_free(a); }
};
using ArchivePtr = std::unique_ptr<archive, ArchiveCloser>;

// What may still be unpacked of one file, counted at every depth: a kilobyte can unpack to
// terabytes, and an archive in an archive to as many times more.
class UnpackBudget {
 public:
  explicit UnpackBudget(std::uint64_t file_size);
  [[nodiscard]] Result<void> take(std::uint64_t bytes);

 private:
  std::uint64_t left_;
};

// The file, if it is a regular one. `size` is set to its size.
[[nodiscard]] Result<ArchivePtr> open_archive(const std::string& path, std::uint64_t& size);
// The bytes must outlive it.
[[nodiscard]] Result<ArchivePtr> open_archive(ByteView bytes);
// `head`: what was read of the member already. The outer archive and the budget must outlive it.
[[nodiscard]] Result<ArchivePtr> open_member_archive(archive* outer, Bytes head,
                                                     UnpackBudget& budget);

[[nodiscard]] Error archive_error(archive* a);

// Bytes of the member, at most the buffer's; 0 at its end.
[[nodiscard]] Result<std::size_t> read_member(archive* a, std::span<std::byte> buffer,
                                              UnpackBudget& budget);
// The first bytes of the member, `size` or all.
[[nodiscard]] Result<Bytes> read_member_head(archive* a, std::size_t size, UnpackBudget& budget);

// Nothing but one compressed file, or no archive at all: libarchive's format "raw".
[[nodiscard]] bool is_raw(archive* a);
[[nodiscard]] bool is_compressed_stream(archive* a);

[[nodiscard]] bool is_regular_entry(archive_entry* entry);
[[nodiscard]] std::string name_of_entry(archive_entry* entry);

// The ELF file that a member is: in memory, or where it is large in a file without a name, so that
// memory stays small whatever the size. `head`: what was read of it already.
[[nodiscard]] Result<std::shared_ptr<const ByteSource>> unpack_member(archive* a, Bytes head,
                                                                      UnpackBudget& budget);

}  // namespace reprobe
