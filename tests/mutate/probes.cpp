// Notes, counters, the loaded index and the record that gives the original back.
#include <fmt/format.h>

#include <algorithm>

#include "libprobe/notes/index.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/undo.hpp"
#include "tests/mutate/draft.hpp"

namespace mutate {
namespace {

// A note of probes: its header, its descriptor and the next note.
struct NotePlace {
  const Section* section{};
  std::uint64_t at{};
  std::uint64_t desc{};
  std::uint64_t end{};
  [[nodiscard]] std::uint64_t size() const { return end - at; }
};

// By the bytes alone, with a padding of 4.
std::vector<NotePlace> read_places(const Draft& draft) {
  std::vector<NotePlace> places;
  for (const Section& section : draft.file.sections()) {
    if (section.name != ".note.stapsdt") continue;
    const std::uint64_t end = section.offset.value + section.size.value;
    for (std::uint64_t at = section.offset.value; at + 12 <= end;) {
      const std::uint64_t name = (draft.get(at, 4) + 3) / 4 * 4;
      const std::uint64_t desc = (draft.get(at + 4, 4) + 3) / 4 * 4;
      if (name + desc > end - at - 12) break;
      places.push_back({&section, at, at + 12 + name, at + 12 + name + desc});
      at += 12 + name + desc;
    }
  }
  return places;
}

bool any_note(Draft& draft, NotePlace& note) {
  const auto places = read_places(draft);
  if (places.empty()) return false;
  note = places[draft.random.below(places.size())];
  return true;
}

bool note_header(Draft& draft) {
  constexpr const char* kNames[] = {"n_namesz", "n_descsz", "n_type"};
  NotePlace note;
  const std::uint64_t i = draft.random.below(3);
  return any_note(draft, note) && draft.disturb(note.at + 4 * i, 4, kNames[i]);
}

bool note_field(Draft& draft) {
  constexpr const char* kNames[] = {"location", "base", "semaphore"};
  NotePlace note;
  const std::uint64_t i = draft.random.below(3);
  return any_note(draft, note) &&
         draft.disturb(note.desc + draft.word() * i, draft.word(), kNames[i]);
}

// The location or the counter is another note's.
bool borrowed_field(Draft& draft) {
  NotePlace a, b;
  if (!any_note(draft, a) || !any_note(draft, b)) return false;
  const std::uint64_t field = draft.word() * 2 * draft.random.below(2);
  const std::uint64_t value = draft.get(b.desc + field, draft.word());
  if (value == draft.get(a.desc + field, draft.word())) return false;
  draft.put(a.desc + field, draft.word(), value);
  draft.told = fmt::format("the note at {:#x} has the {} {:#x} of another", a.at,
                           field == 0 ? "location" : "semaphore", value);
  return true;
}

// The location is another byte that looks like a nop.
bool other_nop(Draft& draft) {
  NotePlace note;
  if (!any_note(draft, note)) return false;
  std::vector<std::uint64_t> nops;
  for (const Section& section : draft.file.sections()) {
    if (!section.executable() || section.nobits()) continue;
    const Bytes code = draft.copy(section.offset.value, section.size.value);
    for (std::size_t i = 0; i < code.size(); ++i) {
      const bool nop =
          code[i] == std::byte{0x90} ||
          (code[i] == std::byte{0x0f} && i + 1 < code.size() && code[i + 1] == std::byte{0x1f});
      if (nop) nops.push_back(section.addr.value + i);
    }
  }
  if (nops.empty()) return false;
  const std::uint64_t place = nops[draft.random.below(nops.size())];
  if (place == draft.get(note.desc, draft.word())) return false;
  draft.put(note.desc, draft.word(), place);
  draft.told = fmt::format("the location of the note at {:#x} is {:#x}", note.at, place);
  return true;
}

bool shifted_note(Draft& draft) {
  NotePlace note;
  if (!any_note(draft, note)) return false;
  const std::uint64_t step = 1 + draft.random.below(16);
  for (const unsigned field : {0U, 1U}) {
    const std::uint64_t at = note.desc + draft.word() * field;
    draft.put(at, draft.word(), draft.get(at, draft.word()) + step);
  }
  draft.told = fmt::format("location and base of the note at {:#x} are {} higher", note.at, step);
  return true;
}

bool character(Draft& draft) {
  NotePlace note;
  return any_note(draft, note) &&
         draft.disturb_byte({note.desc + 3 * draft.word(), note.end}, "names or arguments");
}

void resize(Draft& draft, const Section& section, std::uint64_t size) {
  draft.put(section.header_offset.value, kShdr[kShSize], size);
}

bool removed_note(Draft& draft) {
  NotePlace note;
  if (!any_note(draft, note)) return false;
  const std::uint64_t end = note.section->offset.value + note.section->size.value;
  const Bytes rest = draft.copy(note.end, end - note.end);
  draft.write(note.at, rest);
  draft.write(end - note.size(), Bytes(note.size()));
  resize(draft, *note.section, note.section->size.value - note.size());
  draft.told = fmt::format("the note at {:#x} is gone", note.at);
  return true;
}

// The notes stand behind the file, with one of them twice.
bool doubled_note(Draft& draft) {
  NotePlace note;
  if (!any_note(draft, note)) return false;
  Bytes all = draft.copy(note.section->offset.value, note.section->size.value);
  const Bytes one = draft.copy(note.at, note.size());
  all.insert(all.end(), one.begin(), one.end());
  const std::uint64_t at = draft.append(all, 4);
  draft.put(note.section->header_offset.value, kShdr[kShOffset], at);
  resize(draft, *note.section, all.size());
  draft.told = fmt::format("the note at {:#x} is there twice", note.at);
  return true;
}

bool swapped_notes(Draft& draft) {
  const auto places = read_places(draft);
  if (places.size() < 2) return false;
  const std::size_t i = draft.random.below(places.size() - 1);
  const NotePlace &a = places[i], &b = places[i + 1];
  if (a.end != b.at) return false;
  const Bytes first = draft.copy(a.at, a.size()), second = draft.copy(b.at, b.size());
  if (first == second) return false;
  draft.write(a.at, second);
  draft.write(a.at + second.size(), first);
  draft.told = fmt::format("the notes at {:#x} and {:#x} change places", a.at, b.at);
  return true;
}

const Section* record(const Draft& draft) {
  for (const auto name : {reprobe::kUndoSection, reprobe::kGuardsAtSite, reprobe::kGuardsOn,
                          reprobe::kSitesNamed}) {
    if (const Section* found = draft.file.section(name)) return found;
  }
  return nullptr;
}

bool record_byte(Draft& draft) {
  const Section* found = record(draft);
  if (found == nullptr) return false;
  const std::uint64_t at = found->offset.value;
  return draft.disturb_byte({at, at + std::min<std::uint64_t>(found->size.value, 512)}, "record");
}

bool record_size(Draft& draft) {
  const Section* found = record(draft);
  if (found == nullptr) return false;
  return draft.disturb(found->header_offset.value,
                       kShdr[draft.random.one_in(2) ? kShSize : kShOffset]);
}

bool index_byte(Draft& draft) {
  const Section* found = draft.file.section(reprobe::kIndexSection);
  if (found == nullptr) return false;
  return draft.disturb_byte({found->offset.value, found->offset.value + found->size.value},
                            "index");
}

bool index_field(Draft& draft) {
  const Section* found = draft.file.section(reprobe::kIndexSection);
  if (found == nullptr || found->size.value < 64) return false;
  const std::uint64_t at = found->offset.value + 4 * draft.random.below(found->size.value / 4 - 1);
  return draft.disturb(at, 4, "word of the index");
}

bool counter(Draft& draft) {
  const Section* found = draft.file.section(reprobe::kProbesSection);
  if (found == nullptr || found->nobits() || found->size.value < 2) return false;
  const std::uint64_t at = found->offset.value + 2 * draft.random.below(found->size.value / 2);
  return draft.disturb(at, 2, "counter");
}

constexpr Kind kKinds[] = {
    {"note header", note_header},
    {"note field", note_field},
    {"note with another's field", borrowed_field},
    {"note at another nop", other_nop},
    {"note shifted", shifted_note},
    {"character of a note", character},
    {"note removed", removed_note},
    {"note doubled", doubled_note},
    {"notes swapped", swapped_notes},
    {"byte of the record", record_byte},
    {"header of the record", record_size},
    {"byte of the index", index_byte},
    {"field of the index", index_field},
    {"counter", counter},
};

}  // namespace

std::span<const Kind> probe_kinds() { return kKinds; }

}  // namespace mutate
