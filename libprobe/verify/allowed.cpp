#include "libprobe/verify/allowed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {
namespace {

bool is_notes(const Section& section) {
  return section.type == SHT_NOTE && section.name == kStapsdtSection;
}

// The relocations that --emit-relocs keeps for the notes.
bool is_note_relocations(const ElfFile& file, const Section& section) {
  if (section.type != SHT_RELA && section.type != SHT_REL) return false;
  const Section* target = file.section_at(section.info);
  return !section.allocated() && target != nullptr && is_notes(*target);
}

bool is_section_names(const ElfFile& file, const Section& section) {
  return section.index == file.header().shstrndx;
}

bool table_moved(const ElfFile& before, const ElfFile& after) {
  return after.header().shoff.value >= before.source().size();
}

// Elf32_Shdr and Elf64_Shdr: flags to size are contiguous, sh_addralign stands apart.
void add_header_fields(const ElfFile& file, const Section& section, std::vector<Range>& out) {
  const bool is64 = file.header().is64;
  const std::uint64_t at = section.header_offset.value;
  const std::uint64_t flags = 8, link = is64 ? 40 : 24;
  const std::uint64_t align = is64 ? 48 : 32, word = file.header().word();
  out.push_back({at + flags, at + link});
  out.push_back({at + align, at + align + word});
}

Finding section_finding(const Section& section, std::string message) {
  Finding finding;
  finding.rule = "verify-section";
  finding.severity = Severity::error;
  finding.message = fmt::format("section {} {}: {}", section.index, section.name, message);
  return finding;
}

// The fields in which the two headers differ, or "".
std::string differing_fields(const Section& a, const Section& b) {
  std::string names;
  const auto note = [&](bool same, const char* name) {
    if (!same) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  };
  note(a.name == b.name, "name");
  note(a.type == b.type, "sh_type");
  note(a.flags == b.flags, "sh_flags");
  note(a.addr == b.addr, "sh_addr");
  note(a.offset == b.offset, "sh_offset");
  note(a.size == b.size, "sh_size");
  note(a.link == b.link, "sh_link");
  note(a.info == b.info, "sh_info");
  note(a.addralign == b.addralign, "sh_addralign");
  note(a.entsize == b.entsize, "sh_entsize");
  return names;
}

// The fields of `old` with those taken from `now` that may change for it.
Section with_allowed_changes(const ElfFile& before, const Section& old, const Section& now) {
  Section result = old;
  if (is_notes(old)) {
    result.offset = now.offset;
    result.size = now.size;
    result.addralign = now.addralign;
  } else if (is_note_relocations(before, old)) {
    result.size = now.size;
  } else if (is_section_names(before, old)) {
    result.offset = now.offset;
    result.size = now.size;
  } else if (old.name == kBaseSection) {
    result.flags |= now.flags & SHF_ALLOC;
    result.addr = now.addr;
    result.offset = now.offset;
  }
  return result;
}

// New contents stand in the old place or behind the old file, nowhere else.
bool well_placed(const ElfFile& before, const ElfFile& after, const Section& old,
                 const Section& now) {
  if (now.nobits() || now.size.value == 0) return true;
  if (now.offset == old.offset && now.size <= old.size) return true;
  const auto end = checked_add(now.offset.value, now.size.value);
  return now.offset.value >= before.source().size() && end && *end <= after.source().size();
}

// A base inside a loaded segment's bytes, at the distance its segment has.
bool base_in_segment(const ElfFile& after, const Section& base) {
  const auto offset = after.offset_of(base.addr);
  return base.nobits() || (offset && *offset == base.offset && base.allocated());
}

void compare_names(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out) {
  const auto* old = before.section_at(static_cast<std::uint32_t>(before.header().shstrndx));
  const auto* now = after.section_at(static_cast<std::uint32_t>(after.header().shstrndx));
  if (old == nullptr || now == nullptr || old->offset == now->offset) return;
  const auto old_names = before.contents(*old);
  const auto new_names = after.contents(*now);
  if (!old_names || !new_names || new_names->size() < old_names->size() ||
      !std::ranges::equal(*old_names, new_names->first(old_names->size()))) {
    out.push_back(section_finding(*now, "the old section names are not kept"));
  }
}

}  // namespace

std::vector<Range> allowed_ranges(const ElfFile& before, const ElfFile& after, bool new_build_id) {
  std::vector<Range> ranges;
  for (const Section& section : before.sections()) {
    const bool contents = is_notes(section) || is_note_relocations(before, section);
    if (contents && section.in_file && !section.nobits()) {
      ranges.push_back({section.offset.value, section.offset.value + section.size.value});
    }
    if (contents || section.name == kBaseSection) add_header_fields(before, section, ranges);
  }
  if (table_moved(before, after)) {
    // e_shoff and e_shnum (Elf64_Ehdr, Elf32_Ehdr).
    const bool is64 = before.header().is64;
    ranges.push_back(is64 ? Range{40, 48} : Range{32, 36});
    ranges.push_back(is64 ? Range{60, 62} : Range{48, 50});
  }
  ranges.push_back(
      {before.source().size(), std::max(before.source().size(), after.source().size())});
  if (new_build_id) {
    if (const auto id = before.build_id_range()) {
      ranges.push_back({id->first.value, id->first.value + id->second.value});
    }
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  return ranges;
}

void compare_sections(const ElfFile& before, const ElfFile& after, std::vector<Finding>& out) {
  const std::size_t count = before.sections().size();
  for (const Section& now : after.sections().subspan(std::min(count, after.sections().size()))) {
    const bool base = now.name == kBaseSection && before.section(kBaseSection) == nullptr;
    if (!base || !base_in_segment(after, now)) {
      out.push_back(section_finding(now, "is new, and no .stapsdt.base inside code"));
    }
  }
  if (after.sections().size() < count) {
    return out.push_back(section_finding(before.sections().back(), "is not in the result"));
  }
  for (const Section& old : before.sections()) {
    const Section& now = *after.section_at(old.index);
    const std::string fields = differing_fields(with_allowed_changes(before, old, now), now);
    if (!fields.empty()) {
      out.push_back(section_finding(old, fmt::format("{} changed", fields)));
    }
    const bool moved =
        old.name == kBaseSection && (old.addr != now.addr || old.offset != now.offset);
    if (moved ? !base_in_segment(after, now) : !well_placed(before, after, old, now)) {
      out.push_back(section_finding(old, "lies neither in its old place nor behind the old file"));
    }
  }
  compare_names(before, after, out);
}

}  // namespace reprobe
