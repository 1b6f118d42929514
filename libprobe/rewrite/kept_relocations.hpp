// .rela.note.stapsdt, as --emit-relocs keeps it, follows the notes that move.
#pragma once

#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/plan.hpp"

namespace reprobe {

// Moves the entries of `table` (SHT_REL or SHT_RELA, sh_info = the note section) with their
// notes, drops those of removed notes and shrinks the section. Errors: internal, unreadable.
[[nodiscard]] Result<void> move_kept_relocations(Plan& plan, const ElfFile& file,
                                                 const Section& table, const Section& notes,
                                                 const std::vector<KeptNote>& kept);

}  // namespace reprobe
