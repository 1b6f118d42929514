#include "libprobe/rewrite/undoable.hpp"

#include <utility>

#include "libprobe/notes/index.hpp"
#include "libprobe/plan/undo.hpp"

namespace reprobe {

Result<RenewedIndex> finish_undoable(Plan& plan, SectionTable& headers, const ElfFile& file,
                                     std::string_view record, std::string why_record,
                                     std::string why_header) {
  // Before the record is made: it gives the old index back, too.
  Result<RenewedIndex> index;
  if (find_index(file)) {
    Plan finished = plan;
    if (auto done = headers.write(finished); !done) return tl::unexpected(done.error());
    index = renew_index(plan, file, &finished);
    if (!index) return index;
  }
  auto undo = make_undo(plan, file.source());
  if (!undo) return tl::unexpected(undo.error());
  Section section;
  section.name = std::string(record);
  section.type = SHT_PROGBITS;
  section.addralign = Size{1};
  const auto added = headers.append(plan, std::move(section), std::move(*undo),
                                    std::move(why_record), std::move(why_header));
  if (!added) return tl::unexpected(added.error());
  if (auto done = headers.write(plan); !done) return tl::unexpected(done.error());
  return index;
}

}  // namespace reprobe
