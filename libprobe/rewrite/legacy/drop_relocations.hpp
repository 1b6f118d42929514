// Takes words of a loaded section out of the dynamic linker's work: their relocations leave the
// tables, the tables' sizes follow, and DT_TEXTREL goes where nothing else needs it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

struct DroppedRelocations {
  std::size_t count{};
  bool textrel{};                     // DT_TEXTREL or DF_TEXTREL is gone
  std::vector<std::string> sections;  // names of those that change
};

// Plans that no relocation writes the words at `places` (addresses). Nothing is planned where no
// relocation does. Errors: refused (a table that is not one section, or that cannot be written
// smaller), internal.
[[nodiscard]] Result<DroppedRelocations> drop_relocations(Plan& plan, SectionTable& headers,
                                                          const ElfFile& file,
                                                          const std::set<std::uint64_t>& places);

}  // namespace reprobe
