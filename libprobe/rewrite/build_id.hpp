// A new build-id for a changed file: --build-id=new.
#pragma once

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

// Adds the edit that gives the output of `plan` a build-id of the old length: the SHA-256 of the
// output with the id's bytes zeroed, cut or repeated to that length. The same input and plan give
// the same id. Errors: refused (no build-id to replace), internal.
[[nodiscard]] Result<void> renew_build_id(Plan& plan, const ElfFile& file);

}  // namespace reprobe
