// Data behind the end of an ELF file, which its headers do not name: the archive of a program that
// unpacks itself, a file system image, a signature. The program finds it in its own file.
#pragma once

#include <optional>
#include <string_view>

#include "libprobe/elf/file.hpp"

namespace reprobe {

enum class PayloadKind {
  unknown,
  // These are found from the end of the file, or directly behind what the headers name, and all
  // that they say of places counts from themselves: they may move with the end.
  zip,  // end of central directory (PKWARE APPNOTE 4.3.16), offsets from the archive's start
  pyinstaller,  // a cookie that says how long the archive in front of it is
  bun,          // a trailer, and the number of bytes in front of it
  appimage,     // type 2: behind the section headers or the last section
  // A signature over all bytes in front of it: every change makes it wrong.
  signature,
};

struct Payload {
  FileOffset offset;  // where the ELF file ends
  Size size;
  PayloadKind kind{PayloadKind::unknown};
};

// Programs and libraries only. Zeros alone are padding and no payload.
[[nodiscard]] std::optional<Payload> payload_behind(const ElfFile& file);

// May a payload of this kind move together with the end of the file?
[[nodiscard]] bool is_found_from_end(PayloadKind kind);

// "a zip archive"
[[nodiscard]] std::string_view to_string(PayloadKind kind);

// The file without what stands behind it. It reads from the bytes of `file`, whose source must
// outlive it.
[[nodiscard]] Result<ElfFile> without_payload(const ElfFile& file, const Payload& payload);

// Where an AppImage expects its image: behind the section headers and the last section
// (AppImageKit, "elf_size"). Loaders of that kind do not look at segments.
[[nodiscard]] std::uint64_t end_by_section_headers(const ElfFile& file);

}  // namespace reprobe
