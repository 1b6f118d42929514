// Which loaded sections may be changed in place.
#pragma once

#include <string>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// Why the section's bytes must not be changed in place, or "": they belong to something else, or
// sections and segments disagree about where they are.
[[nodiscard]] std::string why_not_own(const ElfFile& file, const Section& section);

}  // namespace reprobe
