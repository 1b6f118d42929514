// A new build-id for a changed file: --build-id=new.
#pragma once

#include <string_view>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

inline constexpr std::string_view kBuildIdSection = ".note.gnu.build-id";

// Gives the output of `plan` a build-id: the SHA-256 of the output with the id's bytes zeroed, cut
// or repeated to the length of the old id. A file without one gets 20 bytes in a section
// .note.gnu.build-id at the end of the file, which is not loaded: perf, gdb and elfutils read it
// from there. The same input and plan give the same id. Errors: refused (no section headers, a
// section of that name without an id), internal.
[[nodiscard]] Result<void> renew_build_id(Plan& plan, const ElfFile& file);

}  // namespace reprobe
