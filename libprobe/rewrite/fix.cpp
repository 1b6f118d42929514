#include "libprobe/rewrite/fix.hpp"

#include <algorithm>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/repairs/state.hpp"

namespace reprobe {
namespace {

// What the notes mean where the file was moved is known from all of them together: they are
// repaired together or not at all. The rest would read differently without those that are gone.
bool shift_is_in_doubt(const ProbeFile& probes, const FixOptions& options) {
  return probes.shift.distance != 0 && (!probes.shift.proven || options.selected ||
                                        std::ranges::any_of(probes.probes, base_is_in_doubt));
}

FixPlan refused_shift(const ProbeFile& probes, std::vector<Refusal> others) {
  FixPlan plan;
  plan.refused = std::move(others);
  plan.refused.push_back(
      {"", "", std::nullopt, std::string(kStapsdtSection),
       "the file seems to have been moved after the link, and not all notes can follow it: " +
           probes.shift.evidence});
  return plan;
}

// The section of the notes where they stay as they are; 0 where there is not just one.
std::uint32_t only_note_section(const ElfFile& file) {
  const auto sections = file.sections();
  const auto first = std::ranges::find_if(sections, holds_notes);
  if (first == sections.end()) return 0;
  return std::find_if(first + 1, sections.end(), holds_notes) == sections.end() ? first->index : 0;
}

// The list of repairs. `with_base`: .stapsdt.base may be added or moved.
Result<FixPlan> run_repairs(FixState& state, bool with_base) {
  if (with_base) {
    if (auto done = repair_base(state); !done) return tl::unexpected(done.error());
  }
  decide_notes(state);
  if (auto done = repair_notes(state); !done) return tl::unexpected(done.error());
  if (state.left_a_section && state.probes.shift.distance != 0) {
    return refused_shift(state.probes, std::move(state.fix.refused));
  }
  if (state.notes == 0) state.notes = only_note_section(state.file);
  for (const auto repair : {repair_probes_section, repair_order}) {
    if (auto done = repair(state); !done) return tl::unexpected(done.error());
  }
  if (auto done = state.headers.write(state.fix.plan); !done) return tl::unexpected(done.error());
  return std::move(state.fix);
}

Result<FixPlan> plan_once(const ElfFile& file, const ProbeFile& probes, const FixOptions& options) {
  if (shift_is_in_doubt(probes, options)) return refused_shift(probes, {});
  auto headers = SectionTable::of(file);
  if (!headers) return tl::unexpected(headers.error());
  FixState state(file, probes, options, *headers);
  auto fix = run_repairs(state, true);
  // A section whose notes say another base than the one that was put down was left as it is.
  if (!fix || !state.left_a_section || !state.base_moved) return fix;
  FixState without_base(file, probes, options, std::move(*headers));
  return run_repairs(without_base, false);
}

// What a note means depends on the others: on their bases, on what was dropped among them. Notes
// that would mean something else once these are repaired show that it is not known well enough.
bool is_final(const ElfFile& before, const FixPlan& fix, const FixOptions& options) {
  const auto after = ElfFile::open(planned_source(before.source(), fix.plan));
  if (!after) return false;
  const auto again = plan_once(*after, read_probes(*after, options.objects), options);
  return again && again->plan.empty();
}

}  // namespace

Result<FixPlan> plan_fix(const ElfFile& file, const ProbeFile& probes, const FixOptions& options) {
  if (file.header().type == ET_REL) {
    return fail(ErrorCode::refused, "", "a relocatable object; its notes are final after the link",
                "run reprobe fix on the linked program or library");
  }
  if (probes.scan.notes.empty() && probes.scan.foreign.empty()) return FixPlan{};
  auto fix = plan_once(file, probes, options);
  if (!fix || fix->plan.empty() || is_final(file, *fix, options)) return fix;
  FixPlan nothing;
  nothing.refused = std::move(fix->refused);
  nothing.refused.push_back({"", "", std::nullopt, std::string(kStapsdtSection),
                             "a second repair would change more: what the notes mean is in doubt"});
  return nothing;
}

}  // namespace reprobe
