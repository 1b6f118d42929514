// What a rewrite that can be taken out again ends with.
#pragma once

#include <string>
#include <string_view>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/rewrite/index/renew.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

// Adds to a plan what lets the file's index follow the notes, the record that gives the original
// back (sled/undo.hpp) in the section `record`, and the headers, after which nothing may be added.
// The reasons are the plan's, for the record and for its header. Errors: as renew_index(),
// make_undo() and SectionTable.
[[nodiscard]] Result<RenewedIndex> finish_undoable(Plan& plan, SectionTable& headers,
                                                   const ElfFile& file, std::string_view record,
                                                   std::string why_record, std::string why_header);

// For a rewrite of a file that has such a record: the record knows the bytes that the plan
// replaces, too, and still gives the original back. Nothing where it gives none any more. Call
// before the headers are written; after it nothing may be added.
[[nodiscard]] Result<void> renew_undo(Plan& plan, SectionTable& headers, const ElfFile& file,
                                      std::string_view record);

}  // namespace reprobe
