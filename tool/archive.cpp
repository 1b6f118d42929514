#include "tool/archive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tool/image.hpp"

namespace reprobe {
namespace {

using namespace std::string_view_literals;

// A .deb is an ar that holds a tar; two levels more than that are no package any more.
constexpr int kMaxDepth = 4;

bool starts_with(ByteView bytes, std::string_view magic, std::size_t at = 0) {
  return bytes.size() >= at + magic.size() && as_text(bytes.subspan(at, magic.size())) == magic;
}

struct UnreadKind {
  std::string_view magic;
  std::size_t at;
  std::string_view name;
};
// squashfs: its superblock; ext2 to ext4: s_magic in the superblock at 1024; Alpine's packages of
// the third format, which are no tars.
constexpr std::array kUnread = {UnreadKind{"hsqs"sv, 0, "a squashfs image"},
                                UnreadKind{"\x53\xef"sv, 1080, "an ext4 image"},
                                UnreadKind{"ADBd"sv, 0, "an Alpine package of version 3"}};

const UnreadKind* unread_kind(ByteView head) {
  const auto* found = std::ranges::find_if(
      kUnread, [&](const UnreadKind& kind) { return starts_with(head, kind.magic, kind.at); });
  return found == kUnread.end() ? nullptr : found;
}

bool is_archive(ByteView head) {
  constexpr std::size_t kTarMagicAt = 257;  // POSIX ustar header
  return starts_with(head, "!<arch>\n") || starts_with(head, "ustar", kTarMagicAt) ||
         starts_with(head, "070701") || starts_with(head, "070702") ||
         starts_with(head, "070707") || starts_with(head, "\xed\xab\xee\xdb");  // rpm lead
}

bool is_compressed(ByteView head) {
  constexpr std::array kMagics = {"\x1f\x8b\x08"sv, "BZh"sv,
                                  "\xfd"
                                  "7zXZ\0"sv,
                                  "\x28\xb5\x2f\xfd"sv, "\x04\x22\x4d\x18"sv, "\x1f\x9d"sv};
  return std::ranges::any_of(kMagics, [&](std::string_view m) { return starts_with(head, m); });
}

// A zip's directory stands at its end.
void read_zip(archive* outer, Bytes head, const std::string& shown, int depth,
              UnpackBudget& budget, const InputHandlers& handlers) {
  auto whole = unpack_member(outer, std::move(head), budget);
  if (!whole) return handlers.on_error(shown, whole.error());
  const auto bytes = (*whole)->slice(FileOffset{0}, Size{(*whole)->size()}, "the archive");
  if (!bytes) return handlers.on_error(shown, bytes.error());
  auto inner = open_archive(*bytes);
  if (!inner) return handlers.on_error(shown, inner.error());
  read_members(inner->get(), shown, depth + 1, budget, handlers);
}

void read_inner(archive* outer, Bytes head, const std::string& shown, int depth,
                UnpackBudget& budget, const InputHandlers& handlers) {
  auto inner = open_member_archive(outer, std::move(head), budget);
  if (!inner) return handlers.on_error(shown, inner.error());
  read_members(inner->get(), shown, depth + 1, budget, handlers);
}

}  // namespace

FileKind file_kind(ByteView head) {
  if (starts_with(head,
                  "\x7f"
                  "ELF"))
    return FileKind::elf;
  if (is_archive(head)) return FileKind::archive;
  if (starts_with(head, "PK\x03\x04") || starts_with(head, "PK\x05\x06")) return FileKind::zip;
  if (is_compressed(head)) return FileKind::compressed;
  return unread_kind(head) != nullptr ? FileKind::unread : FileKind::other;
}

std::string_view unread_name(ByteView head) {
  const UnreadKind* kind = unread_kind(head);
  return kind != nullptr ? kind->name : "";
}

Error unread_error(ByteView head) {
  return Error{ErrorCode::unreadable, "", fmt::format("{}: not read", unread_name(head)),
               "mount or unpack it, and name the folder"};
}

void read_one_member(archive* a, const std::string& shown, int depth, UnpackBudget& budget,
                     const InputHandlers& handlers) {
  auto head = read_member_head(a, static_cast<std::size_t>(kHeadSize), budget);
  if (!head) return handlers.on_error(shown, head.error());
  switch (file_kind(*head)) {
    case FileKind::elf: {
      auto source = unpack_member(a, std::move(*head), budget);
      if (!source) return handlers.on_error(shown, source.error());
      return handlers.on_elf(shown, std::move(*source));
    }
    case FileKind::zip:
      return read_zip(a, std::move(*head), shown, depth, budget, handlers);
    case FileKind::archive:
    case FileKind::compressed:
      return read_inner(a, std::move(*head), shown, depth, budget, handlers);
    case FileKind::unread:
      return handlers.on_error(shown, unread_error(*head));
    case FileKind::other:
      break;
  }
}

void read_members(archive* a, const std::string& path, int depth, UnpackBudget& budget,
                  const InputHandlers& handlers) {
  if (depth > kMaxDepth) {
    return handlers.on_error(
        path, Error{ErrorCode::unreadable, "",
                    fmt::format("archives in archives; expected at most {} in each other, found "
                                "more",
                                kMaxDepth),
                    "unpack the outer ones"});
  }
  // A damaged archive ends with an error of the member or of the archive: one is enough.
  bool reported = false;
  InputHandlers watched = handlers;
  watched.on_error = [&](const std::string& where, const Error& error) {
    reported = true;
    handlers.on_error(where, error);
  };
  for (;;) {
    archive_entry* entry = nullptr;
    const int got = archive_read_next_header(a, &entry);
    if (got == ARCHIVE_EOF) return;
    if (got < ARCHIVE_WARN) {
      if (!reported) handlers.on_error(path, archive_error(a));
      return;
    }
    reported = false;
    if (is_raw(a) && !is_compressed_stream(a)) return;  // it only began like an archive
    const std::string name = name_of_entry(entry);
    if (!is_regular_entry(entry) || name == "/") continue;  // "/": the symbol index of an ar
    const std::string member = fmt::format("{}({})", path, name);
    handlers.on_visit(member);
    read_one_member(a, member, depth, budget, watched);
  }
}

void for_each_member(const std::string& path, bool named, const InputHandlers& handlers) {
  if (is_image_tar(path)) return for_each_image_file(path, handlers);
  std::uint64_t size = 0;
  auto a = open_archive(path, size);
  if (!a) return handlers.on_error(path, a.error());
  UnpackBudget budget(size);
  read_members(a->get(), path, 1, budget, handlers);
  if (named && is_raw(a->get()) && !is_compressed_stream(a->get())) {
    handlers.on_error(path, Error{ErrorCode::unreadable, "",
                                  "the archive cannot be read: it begins like one and is none", ""});
  }
}

}  // namespace reprobe
