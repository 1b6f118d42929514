// Members of an archive through libarchive.
#pragma once

#include <string>

#include "tool/inputs.hpp"

namespace reprobe {

enum class FileKind { elf, archive, other };

// By the first bytes. `name` decides only for compressed streams: every .gz starts alike, and
// only some hold an archive.
[[nodiscard]] FileKind file_kind(ByteView head, std::string_view name);

// Bytes of the head that file_kind() looks at.
inline constexpr std::uint64_t kHeadSize = 512;

// Calls on_elf for each ELF member, on_error where the archive or a member cannot be read.
void for_each_member(const std::string& path, ByteView archive, const InputHandlers& handlers);

}  // namespace reprobe
