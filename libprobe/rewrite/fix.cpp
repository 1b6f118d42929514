#include "libprobe/rewrite/fix.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/rewrite/kept_relocations.hpp"
#include "libprobe/rewrite/note_section.hpp"
#include "libprobe/rewrite/section_header.hpp"

namespace reprobe {
namespace {

bool is_note_section(const Section& section) {
  return section.type == SHT_NOTE && section.name == kStapsdtSection;
}

bool overlaps(std::uint64_t a, std::uint64_t a_size, std::uint64_t b, std::uint64_t b_size) {
  return a_size != 0 && b_size != 0 && (in_range(a, b, b_size) || in_range(b, a, a_size));
}

// Why the bytes of the section must not be changed, or "": they belong to something else too, or
// are not understood.
std::string why_not(const ElfFile& file, const ProbeFile& probes, const Section& section) {
  if (!section.in_file) return "the section lies outside the file";
  if ((section.flags & SHF_COMPRESSED) != 0) return "the section is compressed";
  if (section.allocated()) {
    return "the section is loaded: run-time relocations may write into it";
  }
  const auto stop = std::ranges::find(probes.scan.stopped, section.index,
                                      &std::pair<std::uint32_t, std::uint64_t>::first);
  if (stop != probes.scan.stopped.end()) {
    return fmt::format("the bytes from {:#x} on cannot be read as notes", stop->second);
  }
  const auto hits = [&](std::uint64_t offset, std::uint64_t size) {
    return overlaps(section.offset.value, section.size.value, offset, size);
  };
  const ElfHeader& header = file.header();
  if (hits(0, header.is64 ? 64 : 52) || hits(header.phoff.value, header.phnum * header.phentsize) ||
      hits(header.shoff.value, header.shnum * header.shentsize)) {
    return "the section overlaps a header table";
  }
  for (const Segment& segment : file.segments()) {
    if (segment.type == PT_LOAD && hits(segment.offset.value, segment.filesz.value)) {
      return "the section lies inside a loaded segment";
    }
  }
  for (const Section& other : file.sections()) {
    if (other.index == section.index || other.nobits() || other.type == SHT_NULL) continue;
    if (hits(other.offset.value, other.size.value)) {
      return fmt::format("the section overlaps {}", other.name);
    }
  }
  return "";
}

NoteFate fate_of(const Probe& probe, const ProbeFile& probes, const FixOptions& options) {
  if (options.selected && !options.selected(probe)) return NoteFate::keep;
  if (probe.verdict == Verdict::dangling) return NoteFate::remove;
  if (probe.verdict == Verdict::ambiguous && options.remove_ambiguous) return NoteFate::remove;
  const NoteFields fields = repaired_fields(probe, probes);
  const bool same = probe.note.canonical && fields.location == probe.note.location &&
                    fields.base == probe.note.base && fields.semaphore == probe.note.semaphore;
  return same ? NoteFate::keep : NoteFate::rewrite;
}

// Puts the new contents where the old ones stood; at the end of the file where they are longer.
Result<void> place_contents(Plan& plan, const ElfFile& file, const Section& section,
                            const NewNotes& notes) {
  const std::uint64_t size = notes.contents.size();
  Bytes contents = notes.contents;
  if (size <= section.size.value) {
    contents.resize(static_cast<std::size_t>(section.size.value));  // zeros behind the last note
    if (!contents.empty()) {
      auto done = plan.replace(file.source(), section.offset, std::move(contents),
                               "dangling notes removed, kept notes moved up");
      if (!done) return done;
    }
  } else {
    const auto offset = plan.append(file.source(), std::move(contents), Size{4},
                                    "the padded notes do not fit their old place");
    if (!offset) return tl::unexpected(offset.error());
    auto done = set_field(plan, file, section, SectionField::offset, offset->value,
                          "the notes stand at the end of the file");
    if (!done) return done;
  }
  auto done =
      set_field(plan, file, section, SectionField::size, size, "the size of the kept notes");
  if (!done) return done;
  return set_field(plan, file, section, SectionField::addralign, 4,
                   "notes are padded to 4: readers take 8 to mean 8-byte padding");
}

Result<void> rewrite_section(FixPlan& fix, const ElfFile& file, const ProbeFile& probes,
                             const Section& section, const std::vector<NoteFate>& fates) {
  const auto notes = build_notes(file, probes, section, fates);
  if (!notes) return tl::unexpected(notes.error());
  auto done = place_contents(fix.plan, file, section, *notes);
  if (!done) return done;
  fix.changed_sections.push_back(section.name);
  for (const Section& table : file.sections()) {
    if ((table.type != SHT_RELA && table.type != SHT_REL) || table.info != section.index ||
        table.allocated()) {
      continue;
    }
    done = move_kept_relocations(fix.plan, file, table, section, notes->kept);
    if (!done) return done;
    fix.changed_sections.push_back(table.name);
  }
  return {};
}

}  // namespace

Result<FixPlan> plan_fix(const ElfFile& file, const ProbeFile& probes, const FixOptions& options) {
  if (file.header().type == ET_REL) {
    return fail(ErrorCode::refused, "", "a relocatable object; its notes are final after the link",
                "run reprobe fix on the linked program or library");
  }
  FixPlan fix;
  std::vector<NoteFate> fates;
  fates.reserve(probes.probes.size());
  for (const Probe& probe : probes.probes) fates.push_back(fate_of(probe, probes, options));

  for (const Section& section : file.sections()) {
    if (!is_note_section(section)) continue;
    const auto in_section = [&](std::size_t i) {
      return probes.probes[i].note.section == section.index;
    };
    bool wanted = section.addralign.value != 4;
    for (std::size_t i = 0; i < fates.size(); ++i) {
      wanted = wanted || (in_section(i) && fates[i] != NoteFate::keep);
    }
    if (!wanted || section.size.value == 0) continue;
    if (std::string reason = why_not(file, probes, section); !reason.empty()) {
      fix.refused.push_back({"", "", std::nullopt, section.name, std::move(reason)});
      continue;
    }
    auto done = rewrite_section(fix, file, probes, section, fates);
    if (!done) return tl::unexpected(done.error());
    for (std::size_t i = 0; i < fates.size(); ++i) {
      if (!in_section(i)) continue;
      if (fates[i] == NoteFate::remove) fix.removed.push_back(i);
      if (fates[i] == NoteFate::rewrite) fix.rewritten.push_back(i);
    }
  }
  return fix;
}

}  // namespace reprobe
