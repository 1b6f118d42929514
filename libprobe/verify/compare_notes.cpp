#include "libprobe/verify/compare_notes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "libprobe/notes/section_scan.hpp"
#include "libprobe/notes/walk.hpp"
#include "libprobe/verify/leftovers.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kNoteAlign = 4;

Finding finding_at(const Section& section, std::uint64_t offset, std::string message) {
  Finding finding =
      verify_finding("verify-bytes", fmt::format("{}+{:#x}: {}", section.name, offset, message));
  finding.note_offset = section.offset.value + offset;
  return finding;
}

std::string padded(std::string bytes) {
  bytes.resize((bytes.size() + kNoteAlign - 1) / kNoteAlign * kNoteAlign);
  return bytes;
}

// What a repair may copy: the notes of the input, each with its padding.
class Copies {
 public:
  Copies(const ElfFile& file, const ProbeFile& probes)
      : order_(file.header().order), old_base_(probes.base.value_or(VirtAddr{})) {
    for (const Note& note : probes.scan.notes) add(note);
    for (const ForeignNote& note : probes.scan.foreign) add(note);
    for (const ForeignNote& note : scan_foreign_section(file).foreign) add(note);
    for (const Probe& probe : probes.probes) {
      places_.emplace(probe.note.location, probe.note.base);
      counters_.insert(probe.note.semaphore);
    }
  }

  [[nodiscard]] bool has(ByteView bytes) const { return bytes_.contains(as_text(bytes)); }

  // As it was. Where .stapsdt.base is new or moves each note states it: with another one a tracer
  // finds another site.
  [[nodiscard]] bool has(const Note& note, VirtAddr base) const {
    return has(note.bytes) && (note.base == base || old_base_ == base);
  }

  // Written anew it says the file's addresses; where that is not asked for, what it said.
  [[nodiscard]] bool may_say(const Probe& probe, VirtAddr base) const {
    const Note& note = probe.note;
    const bool place =
        (note.base == base && note.location == probe.site) ||
        ((note.base == base || old_base_ == base) && places_.contains({note.location, note.base}));
    return place && (note.semaphore == probe.semaphore || counters_.contains(note.semaphore));
  }

 private:
  template <typename AnyNote>
  void add(const AnyNote& note) {
    const std::string text(as_text(note.bytes));
    bytes_.insert(padded(text));
    // In a section laid out for 8 the parts stood behind other padding.
    const auto field = [&](std::size_t at) {
      return static_cast<std::size_t>(load_uint(note.bytes, at, 4, order_));
    };
    std::string packed = padded(text.substr(0, kNoteHeader + field(0)));
    if (field(4) != 0) packed += text.substr(static_cast<std::size_t>(note.desc), field(4));
    bytes_.insert(padded(std::move(packed)));
  }

  std::endian order_;
  VirtAddr old_base_;
  std::set<std::string, std::less<>> bytes_;
  std::set<std::pair<VirtAddr, VirtAddr>> places_;  // location, base
  std::set<VirtAddr> counters_;
};

bool is_foreign_section(const Section& section) {
  return section.type == SHT_NOTE && section.name == kForeignNotes;
}

// Where a section of notes says that its notes are, and how they are laid out.
using Stated = std::tuple<std::string_view, FileOffset, Size, Size>;

Stated stated(const Section& section) {
  return {section.name, section.offset, section.size, section.addralign};
}

bool same_bytes(const ElfFile& before, const ElfFile& after, FileOffset at, Size size) {
  const auto old_bytes = before.source().slice(at, size, "notes");
  const auto new_bytes = after.source().slice(at, size, "notes");
  return old_bytes && new_bytes ? std::ranges::equal(*old_bytes, *new_bytes)
                                : !old_bytes && !new_bytes;
}

// The indices of the sections of notes that changed their header or a byte. In a hostile file they
// overlap: each byte is compared once.
std::vector<std::uint32_t> changed_sections_of_notes(const ElfFile& before, const ElfFile& after) {
  std::set<Stated> known;
  for (const Section& old : before.sections()) known.insert(stated(old));
  std::vector<std::uint32_t> changed;
  std::vector<const Section*> same;
  for (const Section& section : after.sections()) {
    if (!holds_notes(section) && !is_foreign_section(section)) continue;
    if (known.contains(stated(section))) {
      same.push_back(&section);
    } else {
      changed.push_back(section.index);
    }
  }
  std::ranges::sort(same, {}, [](const Section* section) { return section->offset; });
  for (std::size_t i = 0; i < same.size();) {
    const std::uint64_t begin = same[i]->offset.value;
    std::uint64_t end = begin;
    std::size_t next = i;
    for (; next < same.size() && (next == i || same[next]->offset.value < end); ++next) {
      const auto its_end = checked_add(same[next]->offset.value, same[next]->size.value);
      end = std::max(end, its_end.value_or(~std::uint64_t{0}));
    }
    if (!same_bytes(before, after, FileOffset{begin}, Size{end - begin})) {
      for (std::size_t k = i; k < next; ++k) changed.push_back(same[k]->index);
    }
    i = next;
  }
  return changed;
}

// The parts of a section, to see that they cover it.
using Parts = std::map<std::uint64_t, std::pair<std::uint64_t, bool>>;  // offset -> size, right?

void check_parts(const Section& section, const Parts& parts, std::vector<Finding>& out) {
  std::uint64_t at = 0;
  for (const auto& [offset, part] : parts) {
    if (offset != at) break;
    if (!part.second) {
      return out.push_back(finding_at(
          section, offset, "the note is neither as it was nor written as a repair does"));
    }
    at = offset + part.first;
  }
  if (at != section.size.value) {
    out.push_back(finding_at(section, at, "the bytes are no note"));
  } else if (section.addralign.value != kNoteAlign) {
    out.push_back(finding_at(section, 0,
                             fmt::format("sh_addralign of the section; expected {}, found {}",
                                         kNoteAlign, section.addralign.value)));
  }
}

// Probes and other owners' notes by number, the same in both files: a name can be long.
class Numbers {
 public:
  std::size_t of(const Probe& probe) {
    return number({probe.note.provider, probe.note.name, probe.site.value});
  }
  std::size_t of(const ForeignNote& note) { return number({note.owner, "", note.type}); }

 private:
  using Key = std::tuple<std::string, std::string, std::uint64_t>;

  std::size_t number(Key key) {
    return numbers_.try_emplace(std::move(key), numbers_.size()).first->second;
  }

  std::map<Key, std::size_t> numbers_;
};

// What a relocation of a note says, in numbers that stay where the note moves: of the note, the
// place behind the start of its descriptor, type, symbol, addend.
using Relocated =
    std::tuple<std::size_t, std::uint64_t, std::uint32_t, std::uint32_t, std::int64_t>;

class KeptRelocations {
 public:
  KeptRelocations(const ElfFile& file, const ProbeFile& probes, Numbers& numbers) {
    for (const Probe& probe : probes.probes) add_note(probe.note, numbers.of(probe));
    for (const ForeignNote& note : probes.scan.foreign) add_note(note, numbers.of(note));
    std::uint64_t budget = file.source().size();  // tables may overlap in a hostile file
    for (const Section& table : file.sections()) {
      if (!is_note_relocations(file, table)) continue;
      ++tables;
      if (table.size.value > budget) {
        unread.emplace(table.offset.value, table.size.value);
      } else {
        budget -= table.size.value;
        add_table(file, table);
      }
    }
  }

  std::map<Relocated, std::size_t> entries;
  std::vector<Relocated> order;  // the same, as they stand
  std::size_t tables{};
  std::set<std::pair<std::uint64_t, std::uint64_t>> unread;  // tables: offset and size
  std::size_t outside{};                                     // of every note
  std::map<std::size_t, std::size_t> counts;                 // of notes, by number

 private:
  struct Place {
    std::size_t number{};
    std::uint64_t size{}, desc{};
  };

  template <typename AnyNote>
  void add_note(const AnyNote& note, std::size_t number) {
    ++counts[number];
    notes_[{note.section, note.offset}] = {number, note.size, note.desc};
  }

  void add_table(const ElfFile& file, const Section& table) {
    const auto relocations = file.relocations(table);
    const Section& section = *file.section_at(table.info);
    if (!relocations) return;
    for (const Relocation& entry : *relocations) {
      const std::uint64_t offset = entry.offset.value - section.addr.value;
      const auto behind = notes_.upper_bound({table.info, offset});
      const auto note = behind == notes_.begin() ? notes_.end() : std::prev(behind);
      if (note == notes_.end() || note->first.first != table.info ||
          !in_range(offset, note->first.second, note->second.size)) {
        ++outside;
        continue;
      }
      const Relocated relocated{note->second.number,
                                offset - note->first.second - note->second.desc, entry.type,
                                entry.symbol, entry.addend.value_or(0)};
      ++entries[relocated];
      order.push_back(relocated);
    }
  }

  std::map<std::pair<std::uint32_t, std::uint64_t>, Place> notes_;  // section and offset
};

// Some of them are gone, and the others stand in their order. (Tables that become one are not
// ordered.)
bool same_order(const KeptRelocations& left, const KeptRelocations& right) {
  if (left.tables != 1 || right.tables != 1) return true;
  auto old = left.order.begin();
  return std::ranges::all_of(right.order, [&](const Relocated& entry) {
    old = std::find(old, left.order.end(), entry);
    if (old == left.order.end()) return false;
    ++old;
    return true;
  });
}

}  // namespace

NoteScan scan_foreign_section(const ElfFile& file) {
  NoteScan scan;
  std::vector<Finding> findings;
  NoteReport report(findings, true);
  for (const Section& section : file.sections()) {
    const auto bytes = file.contents(section);
    if (!is_foreign_section(section) || !bytes) continue;
    scan_note_section({.bytes = *bytes,
                       .index = section.index,
                       .offset = section.offset,
                       .addralign = section.addralign.value,
                       .is64 = file.header().is64,
                       .order = file.header().order},
                      scan, report);
  }
  return scan;
}

void compare_note_bytes(const ElfFile& before, const ProbeFile& old, const ElfFile& after,
                        const ProbeFile& now, std::vector<Finding>& out) {
  const Copies copies(before, old);
  const VirtAddr base = now.base.value_or(VirtAddr{});
  std::map<std::uint32_t, Parts> sections;
  for (const Probe& probe : now.probes) {
    const Note& note = probe.note;
    const bool right = copies.has(note, base) || (note.canonical && copies.may_say(probe, base));
    sections[note.section][note.offset] = {note.size, right};
  }
  const auto add_foreign = [&](const NoteScan& scan) {
    for (const ForeignNote& note : scan.foreign) {
      sections[note.section][note.offset] = {note.size, copies.has(note.bytes)};
    }
  };
  add_foreign(now.scan);
  add_foreign(scan_foreign_section(after));
  for (const std::uint32_t index : changed_sections_of_notes(before, after)) {
    check_parts(*after.section_at(index), sections[index], out);
  }
}

void compare_note_relocations(const ElfFile& before, const ProbeFile& old, const ElfFile& after,
                              const ProbeFile& now, std::vector<Finding>& out) {
  Numbers numbers;
  const KeptRelocations left(before, old, numbers), right(after, now, numbers);
  bool same =
      right.outside <= left.outside && left.unread == right.unread && same_order(left, right);
  for (const auto& [offset, size] : left.unread) {
    const auto a = before.source().slice(FileOffset{offset}, Size{size}, "relocations");
    const auto b = after.source().slice(FileOffset{offset}, Size{size}, "relocations");
    same = same && (a.has_value() == b.has_value()) && (!a || std::ranges::equal(*a, *b));
  }
  for (const auto& [entry, count] : right.entries) {
    const auto known = left.entries.find(entry);
    same = same && known != left.entries.end() && count <= known->second;
  }
  // Those of a note that stays stay.
  for (const auto& [entry, count] : left.entries) {
    const std::size_t number = std::get<0>(entry);
    const auto notes = right.counts.find(number);
    if (notes == right.counts.end() || notes->second != left.counts.at(number)) continue;
    const auto kept = right.entries.find(entry);
    same = same && kept != right.entries.end() && kept->second == count;
  }
  if (same) return;
  out.push_back(verify_finding("verify-bytes", "the relocations of the notes do not follow them"));
}

}  // namespace reprobe
