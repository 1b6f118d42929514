#include "libprobe/rewrite/other_section.hpp"

#include <utility>
#include <vector>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {
namespace {

// The notes, one behind the other in a section of their own.
Result<Plan> write_notes(const ElfFile& file, const ProbeFile& others) {
  std::vector<NoteFields> notes;
  for (const Probe& probe : others.probes) {
    if (probe.note.location_unresolved) {
      return fail(ErrorCode::refused, "other-section",
                  "the dynamic linker writes the locations of the notes");
    }
    notes.push_back(probe.note);
  }
  auto headers = SectionTable::of(file);
  if (!headers) return tl::unexpected(headers.error());
  Plan plan;
  auto done = append_notes(plan, *headers, file, notes, "the notes of another section");
  if (done) done = headers->write(plan);
  if (!done) return tl::unexpected(done.error());
  return plan;
}

}  // namespace

Result<std::optional<OtherSectionPlan>> plan_other_section(const ElfFile& file,
                                                           const FixOptions& options) {
  const auto others = read_other_sections(file);
  if (!others) return std::nullopt;
  const auto notes = write_notes(file, *others);
  if (!notes) return tl::unexpected(notes.error());
  const auto after = ElfFile::open(planned_source(file.source(), *notes));
  if (!after) return tl::unexpected(after.error());
  OtherSectionPlan result{read_probes(*after, options.objects), {}};
  if (result.probes.probes.size() != others->probes.size()) {
    return fail(ErrorCode::refused, "other-section", "the notes would not be read as they were");
  }
  auto fix = plan_fix(*after, result.probes, options);
  if (!fix) return tl::unexpected(fix.error());
  auto plan = compose(file.source(), *notes, fix->plan);
  if (!plan) return tl::unexpected(plan.error());
  fix->plan = std::move(*plan);
  fix->repairs.push_back(
      {std::string(repair::other_section), "the notes are written to .note.stapsdt", std::nullopt});
  fix->changed_sections.emplace_back(kStapsdtSection);
  if (const Section* names = file.section_at(static_cast<std::uint32_t>(file.header().shstrndx))) {
    fix->changed_sections.push_back(names->name);
  }
  // Views of a file that is closed.
  for (Probe& probe : result.probes.probes) probe.note.bytes = {};
  result.fix = std::move(*fix);
  return result;
}

}  // namespace reprobe
