// What the repairs of one file share. Each repair is a function of this: it changes the section
// headers, the wanted notes or the plan, and says what it did or why not.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "libprobe/elf/file_ranges.hpp"
#include "libprobe/probes/semaphore.hpp"
#include "libprobe/rewrite/fix.hpp"
#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

struct FixState {
  FixState(const ElfFile& elf, const ProbeFile& found, const FixOptions& chosen,
           SectionTable section_headers)
      : file(elf),
        probes(found),
        options(chosen),
        ranges(elf),
        headers(std::move(section_headers)),
        base(found.base.value_or(VirtAddr{0})) {
    for (const auto& [section, offset] : found.scan.stopped) stopped.emplace(section, offset);
  }

  const ElfFile& file;
  const ProbeFile& probes;
  const FixOptions& options;
  const FileRanges ranges;
  std::map<std::uint32_t, std::uint64_t> stopped;  // section -> where its notes end

  SectionTable headers;
  FixPlan fix;
  VirtAddr base;      // note.base of the repaired notes
  bool base_moved{};  // or added
  // What becomes of each probe's note, and its fields where it is rewritten.
  std::vector<NoteFate> fates;
  std::vector<NoteFields> fields;
  std::vector<std::string_view> counter_rules;  // the repair of its semaphore, or ""
  // .note.stapsdt in the output, by its index in `headers`; 0 before the notes are written.
  std::uint32_t notes{};
  bool left_a_section{};  // a section of notes could not be rewritten

  [[nodiscard]] bool wants(std::string_view rule) const { return options.repairs.wants(rule); }
  [[nodiscard]] bool whole_file() const { return !options.selected; }
  [[nodiscard]] bool selected(const Probe& probe) const {
    return !options.selected || options.selected(probe);
  }

  void repaired(std::string_view rule, std::string what, std::optional<std::size_t> probe = {}) {
    fix.repairs.push_back({std::string(rule), std::move(what), probe});
  }
  void refuse(std::string_view where, std::string reason) {
    fix.refused.push_back({"", "", std::nullopt, std::string(where), std::move(reason)});
  }
  void changes(std::string_view section) { fix.changed_sections.emplace_back(section); }
};

// Which of two addresses is the site depends on a base that may be wrong: neither is written down.
[[nodiscard]] bool base_is_in_doubt(const Probe& probe);

// Why the bytes of a section of notes cannot be read as they are meant, or "".
[[nodiscard]] std::string why_not_read(const FixState& state, const Section& section);
// Why the bytes of any section must not be changed in place, or "": they belong to something else.
[[nodiscard]] std::string why_not_change(const FixState& state, const Section& section);

// The repairs. Errors: internal; refusals are in the state.

// .stapsdt.base added or moved to where every tracer computes the same.
[[nodiscard]] Result<void> repair_base(FixState& state);
// Decides about each note: removed, kept, or rewritten with which fields.
void decide_notes(FixState& state);
// Writes the sections of notes anew where something in them changes.
[[nodiscard]] Result<void> repair_notes(FixState& state);
// Adds .probes over counters that lie elsewhere.
[[nodiscard]] Result<void> repair_probes_section(FixState& state);
// Puts .note.stapsdt behind .probes.
[[nodiscard]] Result<void> repair_order(FixState& state);

}  // namespace reprobe
