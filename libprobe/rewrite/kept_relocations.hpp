// .rela.note.stapsdt, as --emit-relocs keeps it, follows the notes that move.
#pragma once

#include "libprobe/plan/plan.hpp"
#include "libprobe/rewrite/note_section.hpp"

namespace reprobe {

// A table's new contents; the bytes behind `used` are zeros.
struct MovedRelocations {
  Bytes contents;
  std::uint64_t used{};
};

// The entries of `table` (SHT_REL or SHT_RELA, sh_info = the note section) with their notes moved
// and those of removed notes dropped. Error refused: the table cannot be read, or an entry does not
// fit its place.
[[nodiscard]] Result<MovedRelocations> move_relocations(const ElfFile& file, const Section& table,
                                                        const Section& notes,
                                                        const std::vector<KeptNote>& kept);

}  // namespace reprobe
