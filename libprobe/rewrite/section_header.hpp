// Writes single fields of a section header, in the file's class and byte order.
#pragma once

#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/plan.hpp"

namespace reprobe {

enum class SectionField { offset, size, addralign };

// Errors: internal (the value does not fit the class, overlapping edit).
[[nodiscard]] Result<void> set_field(Plan& plan, const ElfFile& file, const Section& section,
                                     SectionField field, std::uint64_t value, std::string why);

}  // namespace reprobe
