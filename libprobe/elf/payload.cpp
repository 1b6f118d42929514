#include "libprobe/elf/payload.hpp"

#include <algorithm>

#include "libprobe/elf/file_ranges.hpp"

namespace reprobe {
namespace {

// Linux, include/linux/module_signature.h.
constexpr std::string_view kModuleSignature{"~Module signature appended~\n"};
// Bun, StandaloneModuleGraph: the trailer, and behind it the size as a 64-bit word.
constexpr std::string_view kBunTrailer{"\n---- Bun! ----\n"};
constexpr std::size_t kBunSize = 8;
// PyInstaller, pyi_archive: the cookie since 2.1 and before.
constexpr std::string_view kPyInstallerMagic{"MEI\014\013\012\013\016"};
constexpr std::size_t kPyInstallerCookies[] = {88, 24};
// The end of central directory without and with the longest comment.
constexpr std::string_view kZipEnd{"PK\5\6"};
constexpr std::size_t kZipEndSize = 22, kLongestComment = 0xffff;

std::uint64_t end_of(std::uint64_t offset, std::uint64_t size, std::uint64_t file_size) {
  return std::min(checked_add(offset, size).value_or(file_size), file_size);
}

// The record that reaches the end of the bytes exactly. Nothing where there is none, or where its
// offsets count from something in front of the payload: such a zip was made for this very file.
bool is_zip(ByteView bytes) {
  const std::size_t most = std::min(bytes.size(), kZipEndSize + kLongestComment);
  for (std::size_t back = kZipEndSize; back <= most; ++back) {
    const std::size_t at = bytes.size() - back;
    if (as_text(bytes.subspan(at, kZipEnd.size())) != kZipEnd) continue;
    if (load_uint(bytes, at + 20, 2, std::endian::little) != back - kZipEndSize) continue;
    const std::uint64_t size = load_uint(bytes, at + 12, 4, std::endian::little);
    const std::uint64_t offset = load_uint(bytes, at + 16, 4, std::endian::little);
    return size + offset <= at;
  }
  return false;
}

bool is_pyinstaller(ByteView bytes) {
  return std::ranges::any_of(kPyInstallerCookies, [&](std::size_t cookie) {
    if (bytes.size() < cookie) return false;
    const std::size_t at = bytes.size() - cookie;
    return as_text(bytes.subspan(at, kPyInstallerMagic.size())) == kPyInstallerMagic &&
           load_uint(bytes, at + kPyInstallerMagic.size(), 4, std::endian::big) <= bytes.size();
  });
}

bool is_bun(ByteView bytes) {
  return bytes.size() >= kBunTrailer.size() + kBunSize &&
         as_text(bytes.first(bytes.size() - kBunSize)).ends_with(kBunTrailer);
}

// AppImage specification, "Type 2 image format": the magic stands in the ELF header's padding.
bool is_appimage(const ElfFile& file, const Payload& payload) {
  const auto magic = file.source().slice(FileOffset{8}, Size{3}, "the ELF header");
  return magic && as_text(*magic) == "AI\2" && end_by_section_headers(file) == payload.offset.value;
}

PayloadKind kind_of(const ElfFile& file, const Payload& payload, ByteView bytes) {
  if (as_text(bytes).ends_with(kModuleSignature)) return PayloadKind::signature;
  if (is_appimage(file, payload)) return PayloadKind::appimage;
  if (is_pyinstaller(bytes)) return PayloadKind::pyinstaller;
  if (is_bun(bytes)) return PayloadKind::bun;
  return is_zip(bytes) ? PayloadKind::zip : PayloadKind::unknown;
}

}  // namespace

std::uint64_t end_by_section_headers(const ElfFile& file) {
  const ElfHeader& header = file.header();
  const std::uint64_t size = file.source().size();
  const auto sections = file.sections();
  // The table was read: its count is bounded and the product does not wrap.
  const std::uint64_t table = end_of(header.shoff.value, sections.size() * header.shentsize, size);
  if (sections.empty()) return table;
  const Section& last = sections.back();
  return std::max(table, end_of(last.offset.value, last.nobits() ? 0 : last.size.value, size));
}

std::optional<Payload> payload_behind(const ElfFile& file) {
  const std::uint16_t type = file.header().type;
  if (type != ET_EXEC && type != ET_DYN) return std::nullopt;
  // From an offset on that lies behind everything: what nobody claims up to the end of the file.
  const auto unclaimed = FileRanges(file).unclaimed(0);
  const std::uint64_t size = file.source().size();
  if (unclaimed.empty() || unclaimed.back().second != size) return std::nullopt;
  Payload payload{{unclaimed.back().first}, {size - unclaimed.back().first}};
  const auto bytes = file.source().slice(payload.offset, payload.size, "the data behind the file");
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  if (!bytes || std::ranges::all_of(*bytes, is_zero)) return std::nullopt;
  payload.kind = kind_of(file, payload, *bytes);
  return payload;
}

bool is_found_from_end(PayloadKind kind) {
  return kind != PayloadKind::unknown && kind != PayloadKind::signature;
}

std::string_view to_string(PayloadKind kind) {
  switch (kind) {
    case PayloadKind::unknown:
      break;
    case PayloadKind::zip:
      return "a zip archive";
    case PayloadKind::pyinstaller:
      return "a PyInstaller archive";
    case PayloadKind::bun:
      return "the modules of a Bun program";
    case PayloadKind::appimage:
      return "the image of an AppImage";
    case PayloadKind::signature:
      return "a signature";
  }
  return "data of an unknown kind";
}

Result<ElfFile> without_payload(const ElfFile& file, const Payload& payload) {
  const auto bytes = file.source().slice(FileOffset{0}, Size{payload.offset.value}, "the ELF file");
  if (!bytes) return tl::unexpected(bytes.error());
  return ElfFile::open(borrowed_source(*bytes));
}

}  // namespace reprobe
