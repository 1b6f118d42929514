#include "tool/archive.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

namespace reprobe {
namespace {

// A .deb is an ar that holds a tar; two levels more than that are no package any more.
constexpr int kMaxDepth = 4;
// A member is held in memory whole. Larger ones are reported, not read.
constexpr std::size_t kMaxMember = std::size_t{1} << 30;

struct ArchiveCloser {
  void operator()(archive* a) const { archive_read_free(a); }
};
using ArchivePtr = std::unique_ptr<archive, ArchiveCloser>;

bool starts_with(ByteView bytes, std::string_view magic, std::size_t at = 0) {
  return bytes.size() >= at + magic.size() && as_text(bytes.subspan(at, magic.size())) == magic;
}

bool is_compressed(ByteView head) {
  using namespace std::string_view_literals;
  constexpr std::array kMagics = {"\x1f\x8b"sv, "BZh"sv,
                                  "\xfd"
                                  "7zXZ\0"sv,
                                  "\x28\xb5\x2f\xfd"sv};
  return std::ranges::any_of(kMagics, [&](std::string_view m) { return starts_with(head, m); });
}

bool names_an_archive(std::string_view name) {
  // .apk: Alpine's packages are tars in gzip members, one behind the other; .xbps: Void's.
  constexpr std::array<std::string_view, 9> kEndings = {
      ".tgz", ".txz", ".tbz2", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst", ".apk", ".xbps"};
  return std::ranges::any_of(kEndings, [&](std::string_view e) { return name.ends_with(e); });
}

Error archive_error(archive* a) {
  const char* text = archive_error_string(a);
  return Error{ErrorCode::unreadable, "",
               fmt::format("the archive cannot be read: {}", text != nullptr ? text : "unknown"),
               ""};
}

// Adds the member's data to `bytes` until they are `size`, or to its end.
Result<void> read_data(archive* a, std::size_t size, Bytes& bytes) {
  std::array<std::byte, 64 * 1024> piece{};
  while (bytes.size() < size) {
    const la_ssize_t got =
        archive_read_data(a, piece.data(), std::min(piece.size(), size - bytes.size()));
    if (got < 0) return tl::unexpected(archive_error(a));
    if (got == 0) break;
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + got);
  }
  return {};
}

struct Member {
  FileKind kind{FileKind::other};
  Bytes bytes;
};

// The whole member only where it is wanted: an archive of a few kilobytes can unpack to terabytes.
Result<Member> read_member(archive* a, std::string_view name) {
  Member member;
  auto done = read_data(a, static_cast<std::size_t>(kHeadSize), member.bytes);
  if (!done) return tl::unexpected(done.error());
  member.kind = file_kind(member.bytes, name);
  if (member.kind == FileKind::other) return member;
  done = read_data(a, kMaxMember + 1, member.bytes);
  if (!done) return tl::unexpected(done.error());
  if (member.bytes.size() <= kMaxMember) return member;
  return fail(
      ErrorCode::unreadable, "",
      fmt::format("the member is too large to unpack; expected at most {} bytes, found more",
                  kMaxMember),
      "unpack the archive and name the file");
}

// Deterministic ar (the default of binutils on many systems) writes the mode 644, without a type.
bool is_file(archive_entry* entry) {
  const auto type = archive_entry_filetype(entry);
  return type == AE_IFREG || type == 0;
}

std::string name_of(archive_entry* entry) {
  const char* name = archive_entry_pathname(entry);
  return name != nullptr ? name : "?";  // not representable: no UTF-8
}

void read_members(const std::string& path, ByteView bytes, int depth,
                  const InputHandlers& handlers) {
  if (depth > kMaxDepth) {
    return handlers.on_error(
        path, Error{ErrorCode::unreadable, "",
                    fmt::format("archives in archives; expected at most {} in each other, found "
                                "more",
                                kMaxDepth),
                    "unpack the outer ones"});
  }
  const ArchivePtr a(archive_read_new());
  archive_read_support_filter_all(a.get());
  archive_read_support_format_all(a.get());
  if (archive_read_open_memory(a.get(), bytes.data(), bytes.size()) != ARCHIVE_OK) {
    return handlers.on_error(path, archive_error(a.get()));
  }
  bool reported = false;  // an error of a member, which ends the archive too where it is damaged
  for (;;) {
    archive_entry* entry = nullptr;
    const int got = archive_read_next_header(a.get(), &entry);
    if (got == ARCHIVE_EOF) return;
    if (got < ARCHIVE_WARN) {
      if (!reported) handlers.on_error(path, archive_error(a.get()));
      return;
    }
    reported = false;
    const std::string name = name_of(entry);
    if (!is_file(entry) || name == "/") continue;  // "/": the symbol index of an ar
    const std::string member = fmt::format("{}({})", path, name);
    handlers.on_visit(member);
    auto contents = read_member(a.get(), name);
    if (!contents) {
      handlers.on_error(member, contents.error());
      reported = true;
      continue;
    }
    switch (contents->kind) {
      case FileKind::elf:
        handlers.on_elf(member, memory_source(std::move(contents->bytes)));
        break;
      case FileKind::archive:
        read_members(member, contents->bytes, depth + 1, handlers);
        break;
      case FileKind::other:
        break;
    }
  }
}

}  // namespace

FileKind file_kind(ByteView head, std::string_view name) {
  if (starts_with(head,
                  "\x7f"
                  "ELF"))
    return FileKind::elf;
  constexpr std::size_t kTarMagicAt = 257;  // POSIX ustar header
  if (starts_with(head, "!<arch>\n") || starts_with(head, "ustar", kTarMagicAt) ||
      starts_with(head, "PK\x03\x04") || starts_with(head, "PK\x05\x06") ||
      starts_with(head, "070701") || starts_with(head, "\xed\xab\xee\xdb")) {  // rpm lead
    return FileKind::archive;
  }
  return is_compressed(head) && names_an_archive(name) ? FileKind::archive : FileKind::other;
}

void for_each_member(const std::string& path, ByteView archive, const InputHandlers& handlers) {
  read_members(path, archive, 1, handlers);
}

}  // namespace reprobe
