// Thin archives (`ar rcT`): the names of files that stand elsewhere.
#pragma once

#include <string>

#include "tool/inputs.hpp"

namespace reprobe {

[[nodiscard]] bool is_thin_archive(ByteView head);

// Calls on_elf for each member that is an ELF file, on_error where the archive or a member cannot
// be read. Names are relative to the archive's folder.
void for_each_thin_member(const std::string& path, ByteView archive, const InputHandlers& handlers);

}  // namespace reprobe
