#include "libprobe/verify/allowed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "libprobe/notes/index.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/probes/semaphore.hpp"
#include "libprobe/verify/leftovers.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// A hostile table can have very many symbols that are wrong.
constexpr std::size_t kManyFindings = 100;

bool is_section_names(const ElfFile& file, const Section& section) {
  return section.index == file.header().shstrndx;
}

bool table_moved(const ElfFile& before, const ElfFile& after) {
  return after.header().shoff.value >= before.source().size();
}

// Elf32_Shdr and Elf64_Shdr: flags to size are contiguous, sh_type and sh_addralign stand apart.
void add_header_fields(const ElfFile& file, const Section& section, std::vector<Range>& out) {
  const bool is64 = file.header().is64;
  const std::uint64_t at = section.header_offset.value;
  const std::uint64_t type = 4, flags = 8, link = is64 ? 40 : 24;
  const std::uint64_t align = is64 ? 48 : 32, word = file.header().word();
  if (holds_notes(section)) out.push_back({at + type, at + flags});
  out.push_back({at + flags, at + link});
  out.push_back({at + align, at + align + word});
}

// Where headers change places all of their fields are other ones, and so are sh_link and sh_info of
// those that stay.
void add_reordered_headers(const ElfFile& file, std::vector<Range>& out) {
  const std::uint64_t size = file.header().is64 ? 64 : 40;
  for (const Section& section : file.sections()) {
    if (section.index == 0) continue;
    out.push_back({section.header_offset.value, section.header_offset.value + size});
  }
}

// The fields of ElfN_Sym that may change.
struct SymbolFields {
  Range shndx, value, size;
};

SymbolFields symbol_fields(const ElfFile& file, const Section& table, const Symbol& symbol) {
  const std::uint64_t at = table.offset.value + symbol.entry_offset;
  if (file.header().is64) return {{at + 6, at + 8}, {at + 8, at + 16}, {at + 16, at + 24}};
  return {{at + 14, at + 16}, {at + 4, at + 8}, {at + 8, at + 12}};
}

// Calls `f(table, symbol)` for the symbols of sections that are not loaded tables. In a hostile
// file tables overlap: what is not read may not differ, either.
template <typename F>
void each_symbol(const ElfFile& file, F&& f) {
  std::uint64_t budget = file.source().size();
  for (const Section& section : file.sections()) {
    if (section.type != SHT_SYMTAB || section.allocated() || section.size.value > budget) continue;
    budget -= section.size.value;
    const auto table = file.symbol_table(section);
    if (!table) continue;
    for (std::uint32_t i = 1; i < table->size(); ++i) {
      const Symbol symbol = table->at(i);
      if (symbol.in_section()) f(section, *table, symbol);
    }
  }
}

// The index of .stapsdt.base where its address changed; 0 elsewhere.
std::uint32_t moved_base(const ElfFile& before, const ElfFile& after) {
  const Section* old = before.section(kBaseSection);
  const Section* now = after.section(kBaseSection);
  return old != nullptr && now != nullptr && old->addr != now->addr ? old->index : 0;
}

void add_symbols(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                 std::vector<Range>& out) {
  const std::uint32_t base = moved_base(before, after);
  if (base == 0 && !match.reordered()) return;
  each_symbol(before, [&](const Section& section, const SymbolTable&, const Symbol& symbol) {
    const SymbolFields fields = symbol_fields(before, section, symbol);
    if (match.number(symbol.shndx) != symbol.shndx) out.push_back(fields.shndx);
    if (symbol.shndx != base) return;
    out.push_back(fields.value);
    out.push_back(fields.size);
  });
}

Finding section_finding(const Section& section, std::string message) {
  return verify_finding("verify-section",
                        fmt::format("section {} {}: {}", section.index, section.name, message));
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
Section with_allowed_changes(const ElfFile& before, const Section& old, const Section& now,
                             const SectionMatch& match) {
  Section result = old;
  result.link = match.number(old.link);
  if (old.info_is_section()) result.info = match.number(old.info);
  if (holds_notes(old) && old.allocated()) {
    // Its notes stand in another section: it keeps its bytes under a name that no tracer reads.
    if (now.name == kLoadedNotes && match.notes != 0) {
      result.name = now.name;
      result.type = SHT_PROGBITS;
    }
  } else if (holds_notes(old)) {
    if (now.type == SHT_NOTE) result.type = SHT_NOTE;
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
    const bool moved = old.addr != now.addr || old.offset != now.offset || !old.allocated();
    if (moved && now.size.value == 0) result.size = now.size;
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

// An address inside a segment's bytes of the file or at their end, at the distance it has there.
bool at_segments_distance(const ElfFile& file, const Section& section, std::uint32_t flags) {
  return std::ranges::any_of(file.segments(), [&](const Segment& segment) {
    return segment.type == PT_LOAD && (segment.flags & flags) == flags &&
           section.addr >= segment.vaddr &&
           section.addr.value - segment.vaddr.value <= segment.filesz.value &&
           section.addr.value - segment.vaddr.value + segment.offset.value == section.offset.value;
  });
}

// A base beside the code, which says nothing but the distance.
bool base_in_segment(const ElfFile& after, const Section& base) {
  return base.nobits() || (base.allocated() && at_segments_distance(after, base, 0));
}

bool behind_old_file(const ElfFile& before, const ElfFile& after, const Section& section) {
  const auto end = checked_add(section.offset.value, section.size.value);
  return section.offset.value >= before.source().size() && end && *end <= after.source().size();
}

// The fields that no new section has.
bool is_plain(const Section& section, std::uint64_t align) {
  return section.link == 0 && section.info == 0 && section.entsize.value == 0 &&
         section.addralign.value == align;
}

// One note, the build-id, and nothing else, in a section that is not loaded.
bool is_new_build_id(const ElfFile& before, const ElfFile& after, const Section& now) {
  constexpr std::uint64_t kBeforeId = 16;  // three words and "GNU\0"
  constexpr std::uint64_t kId = 20;
  const auto id = after.build_id_range();
  return now.name == ".note.gnu.build-id" && before.section(now.name) == nullptr &&
         !before.build_id_range() && now.type == SHT_NOTE && now.flags == 0 &&
         now.addr.value == 0 && is_plain(now, 4) && behind_old_file(before, after, now) &&
         now.size.value == kBeforeId + kId && id &&
         id->first.value == now.offset.value + kBeforeId && id->second.value == kId;
}

// Notes that come back stand in front of their base, those that stood elsewhere until now behind
// it; a build-id comes last.
std::optional<unsigned> order_of_new(const Section& now, bool were_loaded) {
  if (now.name == kForeignNotes) return 2;
  if (now.name == kStapsdtSection) return were_loaded ? 2 : 0;
  if (now.name == kBaseSection) return 1;
  return now.name == kProbesSection ? std::nullopt : std::optional(3U);
}

// May a repair have added it? Sections of notes hold what stood in the input's; that is compared
// note by note.
bool may_be_new(const ElfFile& before, const ElfFile& after, const Section& now) {
  if (now.name == kBaseSection || now.name == kProbesSection) {
    const bool is_base = now.name == kBaseSection;
    return before.section(now.name) == nullptr && now.size.value == 0 && is_plain(now, 1) &&
           now.type == (is_base ? SHT_PROGBITS : SHT_NOBITS) &&
           now.flags == (is_base ? SHF_ALLOC : SHF_ALLOC | SHF_WRITE) &&
           at_segments_distance(after, now, is_base ? 0 : PF_W);
  }
  const bool notes =
      now.type == SHT_NOTE && (now.name == kStapsdtSection || now.name == kForeignNotes);
  return notes && now.flags == 0 && now.addr.value == 0 && is_plain(now, 4) &&
         behind_old_file(before, after, now);
}

// Notes of a section that is gone stand in the one that is left; none that is loaded goes, or
// changes its place among the headers.
bool may_be_elsewhere(const Section& old, const SectionMatch& match) {
  if (match.now[old.index] == old.index) return true;
  if (old.allocated()) return false;
  return match.now[old.index] != 0 || (holds_notes(old) && match.notes != 0);
}

// With their NULs. That they are what the headers name is compared header by header.
std::uint64_t size_of_new_names(const ElfFile& before, const ElfFile& after,
                                const SectionMatch& match) {
  std::uint64_t size = 0;
  for (const std::uint32_t index : match.added) size += after.section_at(index)->name.size() + 1;
  for (const Section& old : before.sections()) {
    const Section& now = *after.section_at(match.now[old.index]);
    if (now.index != 0 && now.name != old.name) size += now.name.size() + 1;
  }
  return size;
}

// What Section does not say: where its name stands, and bytes behind the fields that are known.
bool same_raw_header(const ElfFile& before, const ElfFile& after, const Section& old,
                     const Section& now) {
  const std::uint64_t size = before.header().shentsize, known = before.header().is64 ? 64 : 40;
  if (after.header().shentsize != size || size < known) return false;
  const auto a = before.source().slice(old.header_offset, Size{size}, "a section header");
  const auto b = after.source().slice(now.header_offset, Size{size}, "a section header");
  if (!a || !b) return false;
  const auto rest = static_cast<std::size_t>(known);
  return (old.name != now.name || std::ranges::equal(a->first(4), b->first(4))) &&
         std::ranges::equal(a->subspan(rest), b->subspan(rest));
}

void compare_names(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                   std::vector<Finding>& out) {
  const auto* old = before.section_at(static_cast<std::uint32_t>(before.header().shstrndx));
  const auto* now = after.section_at(static_cast<std::uint32_t>(after.header().shstrndx));
  if (old != nullptr && after.header().shstrndx != match.number(old->index)) {
    return out.push_back(section_finding(*old, "is not the one of the section names any more"));
  }
  if (old == nullptr || now == nullptr || old->offset == now->offset) return;
  const auto old_names = before.contents(*old);
  const auto new_names = after.contents(*now);
  if (!old_names || !new_names || new_names->size() < old_names->size() ||
      !std::ranges::equal(*old_names, new_names->first(old_names->size()))) {
    return out.push_back(section_finding(*now, "the old section names are not kept"));
  }
  if (new_names->subspan(old_names->size()).size() != size_of_new_names(before, after, match)) {
    out.push_back(section_finding(*now, "has other bytes behind the names than the new ones"));
  }
}

}  // namespace

std::vector<Range> allowed_ranges(const ElfFile& before, const ElfFile& after,
                                  const SectionMatch& match, bool new_build_id) {
  std::vector<Range> ranges;
  for (const Section& section : before.sections()) {
    const bool contents =
        (holds_notes(section) && !section.allocated()) || is_note_relocations(before, section);
    if (contents && section.in_file && !section.nobits()) {
      ranges.push_back({section.offset.value, section.offset.value + section.size.value});
    }
    // A table that moved leaves the old one as it was.
    if ((contents || section.name == kBaseSection) && !table_moved(before, after)) {
      add_header_fields(before, section, ranges);
    }
  }
  // Elf64_Ehdr, Elf32_Ehdr.
  const bool is64 = before.header().is64;
  const Range shnum = is64 ? Range{60, 62} : Range{48, 50};
  if (table_moved(before, after)) {
    ranges.push_back(is64 ? Range{40, 48} : Range{32, 36});  // e_shoff
    ranges.push_back(shnum);
  }
  if (match.reordered()) {
    if (!table_moved(before, after)) add_reordered_headers(before, ranges);
    ranges.push_back(shnum);
    ranges.push_back(is64 ? Range{62, 64} : Range{50, 52});  // e_shstrndx
  }
  add_symbols(before, after, match, ranges);
  ranges.push_back(
      {before.source().size(), std::max(before.source().size(), after.source().size())});
  // What the index says is compared with the notes.
  if (const auto index = find_index(before)) {
    ranges.push_back({index->offset.value, index->offset.value + index->size.value});
  }
  if (new_build_id) {
    if (const auto id = before.build_id_range()) {
      ranges.push_back({id->first.value, id->first.value + id->second.value});
    }
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  return ranges;
}

void compare_sections(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                      bool new_build_id, std::vector<Finding>& out) {
  // Not even the header 0 that every section's number leads to where it is gone.
  if (after.sections().empty()) {
    for (const Section& old : before.sections()) {
      out.push_back(section_finding(old, "is not in the result"));
    }
    return;
  }
  unsigned last = 0;
  const bool were_loaded = after.section(kLoadedNotes) != nullptr;
  for (const std::uint32_t index : match.added) {
    const Section& now = *after.section_at(index);
    const auto order = order_of_new(now, were_loaded);
    if (order && std::exchange(last, std::max(last, *order)) > *order) {
      out.push_back(section_finding(now, "stands behind one that comes after it"));
    }
    const bool asked = new_build_id && is_new_build_id(before, after, now);
    if (!asked && !may_be_new(before, after, now)) {
      out.push_back(section_finding(now, "is new, and none that a repair adds"));
    }
  }
  for (const Section& old : before.sections()) {
    if (!may_be_elsewhere(old, match)) {
      out.push_back(section_finding(old, match.now[old.index] == 0
                                             ? "is not in the result"
                                             : "has another place among the headers"));
      continue;
    }
    const std::uint32_t index = match.now[old.index];
    if (index == 0 && old.index != 0) continue;
    const Section& now = *after.section_at(index);
    std::string fields = differing_fields(with_allowed_changes(before, old, now, match), now);
    if (fields.empty() && !same_raw_header(before, after, old, now)) fields = "sh_name";
    if (!fields.empty()) {
      out.push_back(section_finding(old, fmt::format("{} changed", fields)));
    }
    const bool moved =
        old.name == kBaseSection && (old.addr != now.addr || old.offset != now.offset);
    if (moved ? !base_in_segment(after, now) : !well_placed(before, after, old, now)) {
      out.push_back(section_finding(old, "lies neither in its old place nor behind the old file"));
    }
  }
  if (const auto number = out_of_order(before, after, match)) {
    out.push_back(
        section_finding(*before.section_at(*number), "has another place among the headers"));
  }
  compare_names(before, after, match, out);
}

void compare_symbols(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                     std::vector<Finding>& out) {
  const std::uint32_t base = moved_base(before, after);
  if (base == 0 && !match.reordered()) return;
  each_symbol(before, [&](const Section& section, const SymbolTable&, const Symbol& symbol) {
    const bool of_base = symbol.shndx == base;
    if (!of_base && match.number(symbol.shndx) == symbol.shndx) return;
    const Section* table = after.section_at(match.number(section.index));
    const Section* place = after.section(kBaseSection);
    Symbol now;
    if (table != nullptr) {
      const auto symbols = after.symbol_table(*table);
      if (symbols) now = symbols->at(symbol.index);
    }
    const bool right = (!of_base || place != nullptr) && now.shndx == match.number(symbol.shndx) &&
                       now.in_section() && now.value == (of_base ? place->addr : symbol.value) &&
                       (of_base ? now.size <= place->size : now.size == symbol.size);
    if (!right && out.size() < kManyFindings) {
      out.push_back(section_finding(
          section, fmt::format("symbol {} does not follow its section", symbol.index)));
    }
  });
}

}  // namespace reprobe
