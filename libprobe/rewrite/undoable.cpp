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

Result<void> renew_undo(Plan& plan, SectionTable& headers, const ElfFile& file,
                        std::string_view record) {
  const Section* section = file.section(record);
  if (section == nullptr) return {};
  const auto undo = plan_undo(file, record);
  if (!undo) return {};
  const auto original = apply(*undo, file.source());
  if (!original) return tl::unexpected(original.error());
  Plan finished = plan;
  if (auto done = headers.write(finished); !done) return done;
  const auto result = apply(finished, file.source());
  if (!result) return tl::unexpected(result.error());
  auto bytes = make_undo(*original, *result);
  if (!bytes) return tl::unexpected(bytes.error());
  const Size size{bytes->size()};
  const std::string why = "the record gives back what this rewrite replaces";
  const auto offset = plan.append(file.source(), std::move(*bytes), Size{1}, why);
  if (!offset) return tl::unexpected(offset.error());
  for (auto done : {headers.set(*section, SectionField::offset, offset->value, why),
                    headers.set(*section, SectionField::size, size.value, why)}) {
    if (!done) return done;
  }
  return {};
}

}  // namespace reprobe
