#include "libprobe/rewrite/fix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "libprobe/rewrite/base_section.hpp"
#include "libprobe/rewrite/file_ranges.hpp"
#include "libprobe/rewrite/kept_relocations.hpp"
#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/planned_source.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {
namespace {

bool is_note_section(const Section& section) {
  return section.type == SHT_NOTE && section.name == kStapsdtSection;
}

// Which of two addresses is the site depends on a base that may be wrong: neither is written down.
bool base_is_in_doubt(const Probe& probe) { return probe.facts.site_if_not_moved; }

NoteFate fate_of(const Probe& probe, VirtAddr base, const FixOptions& options) {
  if (options.selected && !options.selected(probe)) return NoteFate::keep;
  if (probe.verdict == Verdict::dangling) return NoteFate::remove;
  if (probe.verdict == Verdict::ambiguous && options.remove_ambiguous) return NoteFate::remove;
  if (base_is_in_doubt(probe)) return NoteFate::keep;
  const NoteFields fields = repaired_fields(probe, base);
  const bool same = probe.note.canonical && fields.location == probe.note.location &&
                    fields.base == probe.note.base && fields.semaphore == probe.note.semaphore;
  return same ? NoteFate::keep : NoteFate::rewrite;
}

class Fixer {
 public:
  Fixer(const ElfFile& file, const ProbeFile& probes, const FixOptions& options,
        SectionTable headers)
      : file_(file),
        probes_(probes),
        options_(options),
        ranges_(file),
        headers_(std::move(headers)),
        base_(probes.base.value_or(VirtAddr{0})) {
    for (const auto& [section, offset] : probes.scan.stopped) stopped_.emplace(section, offset);
    for (const Section& section : file.sections()) {
      const bool relocations = section.type == SHT_RELA || section.type == SHT_REL;
      if (relocations && !section.allocated()) tables_.emplace(section.info, &section);
    }
  }

  // `with_base`: .stapsdt.base may be added or moved.
  Result<FixPlan> run(bool with_base) {
    if (shift_is_in_doubt()) return refuse_all();
    auto done = with_base ? move_base() : Result<void>{};
    if (!done) return tl::unexpected(done.error());
    fates_.reserve(probes_.probes.size());
    for (const Probe& probe : probes_.probes) fates_.push_back(fate_of(probe, base_, options_));
    refuse_doubtful_base();
    for (const Section& section : file_.sections()) {
      if (!is_note_section(section) || !wanted(section)) continue;
      done = rewrite(section);
      if (done) continue;
      if (done.error().code != ErrorCode::refused) return tl::unexpected(done.error());
      refuse_section(section, done.error().message);
      left_a_section_ = true;
    }
    if (left_a_section_ && probes_.shift.distance != 0) return refuse_all();
    done = headers_.write(fix_.plan);
    if (!done) return tl::unexpected(done.error());
    return std::move(fix_);
  }

  // A section whose notes say another base than the one that was put down was left as it is.
  [[nodiscard]] bool contradicts_base() const { return left_a_section_ && base_moved_; }

 private:
  // All notes follow the base or none: where some cannot be rewritten it stays where it is.
  Result<void> move_base() {
    const auto wanted = wanted_base(file_, probes_);
    if (!wanted || options_.selected) return {};
    if (ranges_.section_over_header()) return {};
    for (const Section& section : file_.sections()) {
      if (is_note_section(section) && !why_not(section).empty()) return {};
    }
    if (std::ranges::any_of(probes_.probes, base_is_in_doubt)) return {};
    SectionTable headers = headers_;
    auto done = add_base(headers, file_, *wanted);
    if (!done && done.error().code == ErrorCode::refused) {
      fix_.refused.push_back(
          {"", "", std::nullopt, std::string(kBaseSection), done.error().message});
      return {};
    }
    if (!done) return done;
    headers_ = std::move(headers);
    base_ = *wanted;
    base_moved_ = true;
    fix_.base = *wanted;
    fix_.changed_sections.emplace_back(kBaseSection);
    const Section* names = file_.section_at(static_cast<std::uint32_t>(file_.header().shstrndx));
    if (names != nullptr) fix_.changed_sections.push_back(names->name);
    return {};
  }

  void refuse_doubtful_base() {
    const auto count = std::ranges::count_if(probes_.probes, [&](const Probe& probe) {
      return base_is_in_doubt(probe) && (!options_.selected || options_.selected(probe));
    });
    if (count == 0) return;
    fix_.refused.push_back({"", "", std::nullopt, std::string(kBaseSection),
                            fmt::format("{} of {} notes stand on a nop only without the base",
                                        count, probes_.probes.size())});
  }

  // What the notes mean where the file was moved is known from all of them together: they are
  // repaired together or not at all. The rest would read differently without those that are gone.
  [[nodiscard]] bool shift_is_in_doubt() const {
    return probes_.shift.distance != 0 && (!probes_.shift.proven || options_.selected ||
                                           std::ranges::any_of(probes_.probes, base_is_in_doubt));
  }

  FixPlan refuse_all() {
    FixPlan plan;
    plan.refused = std::move(fix_.refused);
    plan.refused.push_back(
        {"", "", std::nullopt, std::string(kStapsdtSection),
         "the file seems to have been moved after the link, and not all notes can follow it: " +
             probes_.shift.evidence});
    return plan;
  }

  void refuse_section(const Section& section, std::string reason) {
    fix_.refused.push_back({"", "", std::nullopt, section.name, std::move(reason)});
  }

  [[nodiscard]] bool wanted(const Section& section) const {
    if (section.size.value == 0) return false;
    const auto [first, count] = probes_of(probes_, section);
    const auto fates = std::span(fates_).subspan(first, count);
    return section.addralign.value != 4 ||
           std::ranges::any_of(fates, [](NoteFate fate) { return fate != NoteFate::keep; });
  }

  // Why the bytes of a section must not be changed, or "": they belong to something else too, or
  // are not understood.
  [[nodiscard]] std::string why_not(const Section& section) const {
    if (!section.in_file) return "the section lies outside the file";
    if ((section.flags & SHF_COMPRESSED) != 0) return "the section is compressed";
    if (section.allocated()) {
      return "the section is loaded: run-time relocations may write into it";
    }
    if (has_nameless_note(section)) {
      return "it has notes without a provider or a name: it may be laid out in an unknown way";
    }
    if (const auto stop = stopped_.find(section.index); stop != stopped_.end()) {
      return fmt::format("the bytes from {:#x} on cannot be read as notes", stop->second);
    }
    if (const auto sharer = ranges_.sharer(section)) {
      return "the section overlaps " + *sharer;
    }
    if (const auto sharer = ranges_.sharer_of_section_headers()) {
      return "the section headers overlap " + *sharer;
    }
    return "";
  }

  [[nodiscard]] bool has_nameless_note(const Section& section) const {
    const auto [first, count] = probes_of(probes_, section);
    return std::ranges::any_of(std::span(probes_.probes).subspan(first, count), [](const Probe& p) {
      return p.verdict != Verdict::live && (p.note.provider.empty() || p.note.name.empty());
    });
  }

  // Nothing is planned before all of it is known to be possible.
  Result<void> rewrite(const Section& section) {
    const auto [begin, end] = tables_.equal_range(section.index);
    if (std::string reason = why_not(section); !reason.empty()) return refuse(reason);
    const auto notes = build_notes(file_, probes_, section, fates_, base_);
    if (!notes) return tl::unexpected(notes.error());
    std::vector<MovedRelocations> moved;
    for (auto it = begin; it != end; ++it) {
      if (std::string reason = why_not(*it->second); !reason.empty()) {
        return refuse("its relocations cannot follow: " + reason);
      }
      auto table = move_relocations(file_, *it->second, section, notes->kept);
      if (!table) return tl::unexpected(table.error());
      moved.push_back(std::move(*table));
    }
    auto done = place_notes(section, notes->contents);
    if (!done) return done;
    auto next = moved.begin();
    for (auto it = begin; it != end; ++it) {
      done = place_relocations(*it->second, std::move(*next++));
      if (!done) return done;
    }
    report_changes(section);
    return {};
  }

  static tl::unexpected<Error> refuse(std::string reason) {
    return fail(ErrorCode::refused, std::string(kStapsdtSection), std::move(reason));
  }

  // Puts the new contents where the old ones stood; at the end of the file where they are longer.
  Result<void> place_notes(const Section& section, const Bytes& notes) {
    Bytes contents = notes;
    if (contents.size() <= section.size.value) {
      contents.resize(static_cast<std::size_t>(section.size.value));  // zeros behind the last note
      auto done = fix_.plan.replace(file_.source(), section.offset, std::move(contents),
                                    "dangling notes removed, kept notes moved up");
      if (!done) return done;
    } else {
      const auto offset = fix_.plan.append(file_.source(), std::move(contents), Size{4},
                                           "the padded notes do not fit their old place");
      if (!offset) return tl::unexpected(offset.error());
      auto done = set(section, SectionField::offset, offset->value,
                      "the notes stand at the end of the file");
      if (!done) return done;
    }
    auto done = set(section, SectionField::size, notes.size(), "the size of the kept notes");
    if (!done) return done;
    return set(section, SectionField::addralign, 4,
               "notes are padded to 4: readers take 8 to mean 8-byte padding");
  }

  Result<void> place_relocations(const Section& table, MovedRelocations moved) {
    auto done = fix_.plan.replace(file_.source(), table.offset, std::move(moved.contents),
                                  "relocations of the notes follow them");
    if (!done) return done;
    fix_.changed_sections.push_back(table.name);
    return set(table, SectionField::size, moved.used, "entries of removed notes are gone");
  }

  Result<void> set(const Section& section, SectionField field, std::uint64_t value,
                   const char* why) {
    return headers_.set(section, field, value, why);
  }

  void report_changes(const Section& section) {
    fix_.changed_sections.push_back(section.name);
    const auto [first, count] = probes_of(probes_, section);
    for (std::size_t i = first; i < first + count; ++i) {
      if (fates_[i] == NoteFate::remove) fix_.removed.push_back(i);
      if (fates_[i] == NoteFate::rewrite) fix_.rewritten.push_back(i);
    }
  }

  const ElfFile& file_;
  const ProbeFile& probes_;
  const FixOptions& options_;
  FileRanges ranges_;
  SectionTable headers_;
  VirtAddr base_;  // note.base of the repaired notes
  bool base_moved_{};
  bool left_a_section_{};
  std::vector<NoteFate> fates_;
  std::map<std::uint32_t, std::uint64_t> stopped_;       // section -> where its notes end
  std::multimap<std::uint32_t, const Section*> tables_;  // section -> its kept relocations
  FixPlan fix_;
};

Result<FixPlan> plan_once(const ElfFile& file, const ProbeFile& probes, const FixOptions& options) {
  auto headers = SectionTable::of(file);
  if (!headers) return tl::unexpected(headers.error());
  Fixer fixer(file, probes, options, *headers);
  auto fix = fixer.run(true);
  if (!fix || !fixer.contradicts_base()) return fix;
  return Fixer(file, probes, options, std::move(*headers)).run(false);
}

// What a note means depends on the others: on their bases, on what was dropped among them. Notes
// that would mean something else once these are repaired show that it is not known well enough.
bool is_final(const ElfFile& before, const FixPlan& fix, const FixOptions& options) {
  const auto after = ElfFile::open(planned_source(before.source(), fix.plan));
  if (!after) return false;
  const auto again = plan_once(*after, read_probes(*after), options);
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
