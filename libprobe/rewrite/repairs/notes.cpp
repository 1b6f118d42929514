// Writes .note.stapsdt anew: without removed notes, in one section that is not loaded, canonically.
#include <fmt/format.h>

#include <algorithm>

#include "libprobe/notes/rules.hpp"
#include "libprobe/rewrite/kept_relocations.hpp"
#include "libprobe/rewrite/repairs/state.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kManySections = 64;

using Sections = std::vector<const Section*>;

tl::unexpected<Error> refused(std::string why) {
  return fail(ErrorCode::refused, std::string(kStapsdtSection), std::move(why));
}

class NoteRepair {
 public:
  explicit NoteRepair(FixState& state) : state_(state) {
    for (const Section& section : state.file.sections()) {
      if (holds_notes(section)) sections_.push_back(&section);
      if (section.holds_relocations() && !section.allocated())
        tables_.emplace(section.info, &section);
    }
  }

  Result<void> run() {
    // Each costs a look at all headers.
    if (sections_.size() > kManySections) {
      state_.refuse(kStapsdtSection, "note-sections: more sections than any linker leaves");
      state_.left_a_section = true;
      return {};
    }
    const bool join =
        sections_.size() > 1 && state_.whole_file() && state_.wants(rule::note_sections);
    if (join) {
      auto done = rewrite(sections_);
      if (done || done.error().code != ErrorCode::refused) return done;
      state_.refuse(kStapsdtSection, fmt::format("note-sections: {}", done.error().message));
    }
    for (const Section* section : sections_) {
      if (!wanted(*section)) continue;
      auto done = rewrite({section});
      if (done) continue;
      if (done.error().code != ErrorCode::refused) return done;
      state_.refuse(section->name, done.error().message);
      state_.left_a_section = true;
    }
    return {};
  }

 private:
  [[nodiscard]] bool leaves_memory(const Section& section) const {
    return section.allocated() && state_.whole_file() && state_.wants(rule::note_alloc);
  }

  [[nodiscard]] bool has_other_owners(const Section& section) const {
    return state_.whole_file() && state_.wants(rule::note_foreign) &&
           std::ranges::any_of(foreign_of(state_.probes, section), is_other_owner);
  }

  [[nodiscard]] bool has_wrong_type(const Section& section) const {
    return section.type != SHT_NOTE && state_.whole_file() && state_.wants(rule::note_section_type);
  }

  [[nodiscard]] bool wanted(const Section& section) const {
    if (section.size.value == 0) return false;
    const auto [first, count] = probes_of(state_.probes, section);
    const auto fates = std::span(state_.fates).subspan(first, count);
    return (section.addralign.value != 4 && state_.wants(rule::note_align)) ||
           leaves_memory(section) || has_other_owners(section) || has_wrong_type(section) ||
           std::ranges::any_of(fates, [](NoteFate fate) { return fate != NoteFate::keep; });
  }

  // Nothing is planned before all of it is known to be possible: the state is changed last.
  Result<void> rewrite(const Sections& sections) {
    for (const Section* section : sections) {
      if (auto done = check(*section, sections.size() > 1); !done) return done;
    }
    const bool apart = std::ranges::any_of(
        sections, [&](const Section* section) { return has_other_owners(*section); });
    const auto notes =
        build_notes(state_.file, state_.probes, sections, {state_.fates, state_.fields, apart});
    if (!notes) return tl::unexpected(notes.error());
    auto moved = moved_relocations(*sections.front(), *notes);
    if (!moved) return tl::unexpected(moved.error());

    SectionTable headers = state_.headers;
    Plan plan = state_.fix.plan;
    auto done = place_notes(headers, plan, sections, notes->contents);
    if (done && !notes->foreign.empty()) done = place_foreign(headers, plan, notes->foreign);
    for (auto& [table, relocations] : *moved) {
      if (done) done = place_relocations(headers, plan, *table, std::move(relocations));
    }
    if (!done) return done;
    state_.headers = std::move(headers);
    state_.fix.plan = std::move(plan);
    report(sections, !notes->foreign.empty());
    return {};
  }

  Result<void> check(const Section& section, bool joined) const {
    std::string why = why_not_read(state_, section);
    if (why.empty() && !leaves_memory(section)) {
      why = section.allocated() ? "the section is loaded: run-time relocations may write into it"
                                : why_not_change(state_, section);
    }
    const bool kept_relocations = tables_.contains(section.index);
    if (why.empty() && kept_relocations &&
        (joined || section.allocated() || has_other_owners(section))) {
      why = "the relocations that were kept for its notes cannot follow them to another section";
    }
    return why.empty() ? Result<void>{} : refused(std::move(why));
  }

  using Moved = std::vector<std::pair<const Section*, MovedRelocations>>;
  Result<Moved> moved_relocations(const Section& section, const NewNotes& notes) const {
    Moved moved;
    const auto [begin, end] = tables_.equal_range(section.index);
    for (auto it = begin; it != end; ++it) {
      const Section& table = *it->second;
      if (std::string why = why_not_change(state_, table); !why.empty()) {
        return refused("its relocations cannot follow: " + why);
      }
      auto relocations = move_relocations(state_.file, table, section, notes.kept);
      if (!relocations) return tl::unexpected(relocations.error());
      moved.emplace_back(&table, std::move(*relocations));
    }
    return moved;
  }

  // In the first section that is not loaded, in its old place where they fit; in a new section
  // where all are loaded.
  Result<void> place_notes(SectionTable& headers, Plan& plan, const Sections& sections,
                           const Bytes& notes) {
    const auto in_place = std::ranges::find_if_not(sections, &Section::allocated);
    const Section* keeper = in_place == sections.end() ? nullptr : *in_place;
    auto done = keeper != nullptr ? place_in(headers, plan, *keeper, notes)
                                  : place_new(headers, plan, kStapsdtSection, notes);
    if (!done) return done;
    notes_ = keeper != nullptr ? keeper->index : added_;
    for (const Section* section : sections) {
      if (section == keeper) continue;
      done = section->allocated()
                 ? give_up_loaded(headers, *section)
                 : headers.drop(section->index, notes_, "the notes stand in one section");
      if (!done) return done;
    }
    return {};
  }

  Result<void> place_in(SectionTable& headers, Plan& plan, const Section& section,
                        const Bytes& notes) {
    Bytes contents = notes;
    if (contents.size() <= section.size.value) {
      contents.resize(static_cast<std::size_t>(section.size.value));  // zeros behind the last note
      auto done = plan.replace(state_.file.source(), section.offset, std::move(contents),
                               "dangling notes removed, kept notes moved up");
      if (!done) return done;
    } else {
      const auto offset = plan.append(state_.file.source(), std::move(contents), Size{4},
                                      "the notes do not fit their old place");
      if (!offset) return tl::unexpected(offset.error());
      auto done = headers.set(section, SectionField::offset, offset->value,
                              "the notes stand at the end of the file");
      if (!done) return done;
    }
    if (has_wrong_type(section)) {
      auto done = headers.set(section, SectionField::type, SHT_NOTE, "tracers read SHT_NOTE only");
      if (!done) return done;
    }
    auto done =
        headers.set(section, SectionField::size, notes.size(), "the size of the kept notes");
    if (!done) return done;
    return headers.set(section, SectionField::addralign, 4,
                       "notes are padded to 4: readers take 8 to mean 8-byte padding");
  }

  Result<void> place_new(SectionTable& headers, Plan& plan, std::string_view name,
                         const Bytes& notes) {
    const auto index =
        headers.append(plan, note_section(name), notes, fmt::format("notes of {}", name),
                       fmt::format("{} is new", name));
    if (!index) return tl::unexpected(index.error());
    added_ = *index;
    return {};
  }

  // gdb reads every SHT_NOTE section: it would list the probes twice.
  static Result<void> give_up_loaded(SectionTable& headers, const Section& section) {
    auto done = headers.set(section, SectionField::type, SHT_PROGBITS,
                            "the notes stand in a section that is not loaded");
    if (!done) return done;
    return headers.rename(section, kLoadedNotes, "a copy of the notes that is loaded");
  }

  Result<void> place_foreign(SectionTable& headers, Plan& plan, const Bytes& notes) {
    return place_new(headers, plan, kForeignNotes, notes);
  }

  Result<void> place_relocations(SectionTable& headers, Plan& plan, const Section& table,
                                 MovedRelocations moved) {
    auto done = plan.replace(state_.file.source(), table.offset, std::move(moved.contents),
                             "relocations of the notes follow them");
    if (!done) return done;
    state_.changes(table.name);
    return headers.set(table, SectionField::size, moved.used, "entries of removed notes are gone");
  }

  void report(const Sections& sections, bool foreign) {
    state_.notes = notes_;
    state_.changes(kStapsdtSection);
    if (sections.size() > 1) {
      state_.repaired(rule::note_sections, fmt::format("{} sections joined", sections.size()));
    }
    if (std::ranges::any_of(sections, &Section::allocated)) {
      state_.changes(kLoadedNotes);
      state_.repaired(rule::note_alloc, "the notes stand in a section that is not loaded");
    }
    if (foreign) {
      state_.changes(kForeignNotes);
      state_.repaired(rule::note_foreign,
                      fmt::format("notes of other owners move to {}", kForeignNotes));
    }
    for (const Section* section : sections) {
      const auto [first, count] = probes_of(state_.probes, *section);
      for (std::size_t i = first; i < first + count; ++i) report_note(i);
      if (has_wrong_type(*section)) {
        state_.repaired(rule::note_section_type, "the section's type is SHT_NOTE");
      }
      if (section->addralign.value != 4) {
        state_.repaired(rule::note_align, "the section's alignment is 4");
      }
    }
  }

  void report_note(std::size_t i) {
    const Probe& probe = state_.probes.probes[i];
    const NoteFate fate = state_.fates[i];
    if (fate == NoteFate::remove) {
      state_.fix.removed.push_back(i);
      const bool doubtful = probe.verdict == Verdict::ambiguous;
      state_.repaired(doubtful ? repair::ambiguous : repair::dangling, "the note is removed", i);
    }
    if (fate != NoteFate::rewrite) return;
    state_.fix.rewritten.push_back(i);
    const Note& note = probe.note;
    const NoteFields& fields = state_.fields[i];
    if (fields.location != note.location || (fields.base != note.base && !state_.base_moved)) {
      state_.repaired(
          repair::base_shift,
          fmt::format("location {:#x} becomes {:#x}, base {:#x} becomes {:#x}", note.location.value,
                      fields.location.value, note.base.value, fields.base.value),
          i);
    }
    if (!state_.counter_rules[i].empty()) {
      state_.repaired(state_.counter_rules[i],
                      fmt::format("semaphore {:#x} becomes {:#x}", probe.semaphore.value,
                                  fields.semaphore.value),
                      i);
    }
    if (fields.arguments != note.arguments) {
      state_.repaired(repair::arguments,
                      fmt::format("\"{}\" becomes \"{}\"", note.arguments, fields.arguments), i);
    }
  }

  FixState& state_;
  Sections sections_;                                    // of notes
  std::multimap<std::uint32_t, const Section*> tables_;  // section -> its kept relocations
  std::uint32_t notes_{};                                // the section that holds them then
  std::uint32_t added_{};
};

}  // namespace

Result<void> repair_notes(FixState& state) { return NoteRepair(state).run(); }

}  // namespace reprobe
