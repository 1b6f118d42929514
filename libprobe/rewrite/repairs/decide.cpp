// Which notes go, which are rewritten, and with which fields: dangling, base-shift, semaphore-*,
// arguments and the note-* rules about bytes.
#include <algorithm>
#include <array>
#include <set>

#include "libprobe/notes/respell.hpp"
#include "libprobe/notes/rules.hpp"
#include "libprobe/rewrite/repairs/state.hpp"
#include "libprobe/rewrite/semaphore_values.hpp"

namespace reprobe {
namespace {

// Writing a note anew mends all of these at once: one that is found and wanted is enough.
bool wants_canonical(const FixState& state) {
  constexpr std::array kRules = {rule::note_align,  rule::note_namesz,   rule::note_type,
                                 rule::note_descsz, rule::note_args_nul, rule::note_padding,
                                 rule::note_gap};
  if (std::ranges::all_of(kRules, [&](auto rule) { return state.wants(rule); })) return true;
  return std::ranges::any_of(state.probes.scan.findings, [&](const Finding& finding) {
    return std::ranges::find(kRules, finding.rule) != kRules.end() && state.wants(finding.rule);
  });
}

// The dynamic linker's values are not in the bytes of a loaded section: what is taken out of it is
// written anew.
bool leaves_loaded_section(const FixState& state, const Note& note) {
  const Section* section = state.file.section_at(note.section);
  return section != nullptr && section->allocated() && state.whole_file() &&
         state.wants(rule::note_alloc);
}

NoteFields wanted_fields(const FixState& state, const Probe& probe, const SemaphoreValue& counter) {
  NoteFields fields = probe.note;
  if (state.wants(repair::base_shift)) {
    fields = repaired_fields(probe, state.base);
  } else if (state.base_moved) {
    fields.base = state.base;
  }
  if (!counter.rule.empty()) fields.semaphore = counter.address;
  if (state.options.respell && state.wants(repair::arguments)) {
    fields.arguments = respell_arguments(fields.arguments, state.file.header().machine);
  }
  return fields;
}

NoteFate fate_of(const FixState& state, const Probe& probe, const NoteFields& fields,
                 bool canonical_wanted) {
  const Note& note = probe.note;
  if (!state.selected(probe)) return NoteFate::keep;
  if (probe.verdict == Verdict::dangling && state.wants(repair::dangling)) return NoteFate::remove;
  const bool doubtful = probe.verdict == Verdict::ambiguous && state.options.remove_ambiguous;
  if (doubtful && state.wants(repair::ambiguous)) return NoteFate::remove;
  if (base_is_in_doubt(probe)) return NoteFate::keep;
  const bool same = fields.location == note.location && fields.base == note.base &&
                    fields.semaphore == note.semaphore && fields.arguments == note.arguments;
  const bool anew = !note.canonical && (canonical_wanted || leaves_loaded_section(state, note));
  return same && !anew ? NoteFate::keep : NoteFate::rewrite;
}

void refuse_doubtful_base(FixState& state) {
  const auto& probes = state.probes.probes;
  const auto count = std::ranges::count_if(
      probes, [&](const Probe& probe) { return base_is_in_doubt(probe) && state.selected(probe); });
  if (count == 0) return;
  state.refuse(kBaseSection, std::to_string(count) + " of " + std::to_string(probes.size()) +
                                 " notes stand on a nop only without the base");
}

// Of the notes of one probe, the first is named.
void refuse_conflicts(FixState& state, const std::vector<SemaphoreValue>& counters) {
  if (!state.wants(repair::semaphore_conflict)) return;
  std::set<std::pair<std::string_view, std::string_view>> named;
  for (std::size_t i = 0; i < counters.size(); ++i) {
    const Probe& probe = state.probes.probes[i];
    if (!counters[i].conflict || state.fates[i] == NoteFate::remove || !state.selected(probe)) {
      continue;
    }
    if (!named.emplace(probe.note.provider, probe.note.name).second) continue;
    state.fix.refused.push_back({probe.note.provider, probe.note.name, probe.site,
                                 std::string(kStapsdtSection),
                                 "semaphore-conflict: no symbol tells which counter is right"});
  }
}

}  // namespace

void decide_notes(FixState& state) {
  const auto& probes = state.probes.probes;
  const auto counters = wanted_semaphores(
      state.file, state.probes, read_semaphores(state.file, state.probes), state.options.repairs);
  const bool canonical_wanted = wants_canonical(state);
  state.fates.reserve(probes.size());
  state.fields.reserve(probes.size());
  for (std::size_t i = 0; i < probes.size(); ++i) {
    state.fields.push_back(wanted_fields(state, probes[i], counters[i]));
    state.fates.push_back(fate_of(state, probes[i], state.fields[i], canonical_wanted));
    state.counter_rules.push_back(counters[i].rule);
  }
  refuse_doubtful_base(state);
  refuse_conflicts(state, counters);
}

}  // namespace reprobe
