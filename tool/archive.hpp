// Members of an archive, whatever its name and however deep.
#pragma once

#include <string>

#include "tool/archive_stream.hpp"
#include "tool/inputs.hpp"

namespace reprobe {

// compressed: one file or an archive. unread: an image of a kind that nothing here reads.
enum class FileKind { elf, archive, zip, compressed, unread, other };

// By the first bytes alone.
[[nodiscard]] FileKind file_kind(ByteView head);

// What an `unread` file is.
[[nodiscard]] std::string_view unread_name(ByteView head);
[[nodiscard]] Error unread_error(ByteView head);

// Bytes of the head that file_kind() looks at.
inline constexpr std::uint64_t kHeadSize = 1096;

// Calls on_elf for each ELF member, on_error where the archive or a member cannot be read. A tar that
// is a container image is read as its layers make it (image.hpp). A compressed file that is no archive
// has one member.
void for_each_member(const std::string& path, bool named, const InputHandlers& handlers);

// The member at which the archive stands, and where it is an archive its members.
void read_one_member(archive* a, const std::string& shown, int depth, UnpackBudget& budget,
                     const InputHandlers& handlers);

// All members of an open archive.
void read_members(archive* a, const std::string& path, int depth, UnpackBudget& budget,
                  const InputHandlers& handlers);

}  // namespace reprobe
