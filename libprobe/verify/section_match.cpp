#include "libprobe/verify/section_match.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "libprobe/notes/index.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {
namespace {

// A loaded section of notes whose notes stand elsewhere now.
bool gave_up_notes(const Section& old, const Section& now) {
  return holds_notes(old) && old.allocated() && now.name == kLoadedNotes && now.addr == old.addr;
}

bool same_header(const Section& a, const Section& b) {
  return a.name == b.name && a.type == b.type && a.flags == b.flags && a.addr == b.addr &&
         a.offset == b.offset && a.size == b.size && a.addralign == b.addralign;
}

// What stands where in the result's table, by the input's numbers; sections that are gone or new
// leave no trace.
std::vector<std::uint32_t> old_numbers(const SectionMatch& match) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> places;
  for (std::uint32_t old = 1; old < match.now.size(); ++old) {
    if (match.now[old] != 0) places.emplace_back(match.now[old], old);
  }
  std::ranges::sort(places);
  std::vector<std::uint32_t> numbers;
  for (const auto& [now, old] : places) numbers.push_back(old);
  return numbers;
}

// The one reason to exchange two headers: bcc reads no notes whose header stands in front of that
// of .probes.
bool exchanged_for_bcc(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                       std::vector<std::uint32_t> numbers) {
  const Section* old_probes = before.section(kProbesSection);
  const Section* new_probes = after.section(kProbesSection);
  const auto notes = std::ranges::find(match.now, match.notes);
  if (old_probes == nullptr || new_probes == nullptr || match.notes <= new_probes->index ||
      notes == match.now.end()) {
    return false;
  }
  const auto number = static_cast<std::uint32_t>(notes - match.now.begin());
  const auto wrong = std::ranges::is_sorted_until(numbers);
  if (number >= old_probes->index || wrong == numbers.end()) return false;
  // In front of the first that is out of order stands the section that came for the notes.
  const auto place = std::ranges::find(numbers, number);
  std::iter_swap(place, std::prev(wrong));
  return std::ranges::is_sorted(numbers);
}

}  // namespace

bool SectionMatch::reordered() const {
  for (std::uint32_t i = 0; i < now.size(); ++i) {
    if (now[i] != i) return true;
  }
  return false;
}

std::uint32_t SectionMatch::number(std::uint32_t old) const {
  if (old == 0 || old >= now.size()) return old;
  return now[old] == 0 ? notes : now[old];
}

SectionMatch match_sections(const ElfFile& before, const ElfFile& after) {
  const auto old = before.sections();
  const auto result = after.sections();
  SectionMatch match;
  match.now.assign(old.size(), 0);
  std::vector<bool> taken(result.size());
  const auto take = [&](std::size_t from, std::size_t to) {
    match.now[from] = static_cast<std::uint32_t>(to);
    taken[to] = true;
  };
  for (std::size_t i = 0; i < std::min(old.size(), result.size()); ++i) {
    if (old[i].name == result[i].name || gave_up_notes(old[i], result[i])) take(i, i);
  }
  // Those that moved: of several with one name they are taken in order.
  std::multimap<std::string_view, std::size_t> left;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (!taken[i]) left.emplace(result[i].name, i);
  }
  for (std::size_t i = 1; i < old.size(); ++i) {
    if (match.now[i] != 0) continue;
    const auto found = left.find(old[i].name);
    if (found == left.end()) continue;
    take(i, found->second);
    left.erase(found);
  }
  std::size_t notes = 0;
  for (const Section& section : result) {
    if (!taken[section.index]) match.added.push_back(section.index);
    if (holds_notes(section) && ++notes == 1) match.notes = section.index;
  }
  if (notes != 1) match.notes = 0;
  return match;
}

std::optional<std::uint32_t> out_of_order(const ElfFile& before, const ElfFile& after,
                                          const SectionMatch& match) {
  const auto numbers = old_numbers(match);
  const auto wrong = std::ranges::is_sorted_until(numbers);
  if (wrong == numbers.end() || exchanged_for_bcc(before, after, match, numbers)) {
    return std::nullopt;
  }
  // Of several sections of notes any may be the one that is left, and a new .probes takes the place
  // of the notes, which stand behind it then. A header that the shorter table has no place for
  // takes that of notes that are gone. All others keep their order.
  const auto in_gap = [&](std::uint32_t i) {
    const Section* gone = before.section_at(match.now[i]);
    return i >= after.sections().size() && gone != nullptr && holds_notes(*gone) &&
           match.now[gone->index] != gone->index;
  };
  const bool notes_move =
      std::ranges::count_if(before.sections(), holds_notes) > 1 ||
      (before.section(kProbesSection) == nullptr && after.section(kProbesSection) != nullptr);
  // Of sections with one name nobody can say which is which.
  std::map<std::string_view, unsigned> names;
  for (const Section& section : before.sections()) ++names[section.name];
  auto others = numbers;
  std::erase_if(others, [&](std::uint32_t i) {
    const Section& section = *before.section_at(i);
    return (notes_move && holds_notes(section)) || in_gap(i) || names[section.name] > 1;
  });
  if (std::ranges::is_sorted(others)) return std::nullopt;
  return *std::prev(wrong);
}

std::vector<std::string> changed_sections(const ElfFile& before, const ElfFile& after) {
  const SectionMatch match = match_sections(before, after);
  std::vector<std::string> names;
  if (after.sections().empty()) return names;
  bool others = match.reordered();
  for (const Section& old : before.sections()) {
    const std::uint32_t index = match.now[old.index];
    const Section& now = *after.section_at(index);
    const bool relocations = old.holds_relocations();
    const Section* target = relocations ? before.section_at(old.info) : nullptr;
    const bool of_notes = holds_notes(old) || (target != nullptr && holds_notes(*target));
    const bool of_index = old.name == kIndexSection;  // it says what the notes say
    if (index == old.index && same_header(old, now) && !of_notes && !of_index) continue;
    others = others || old.name == kBaseSection;
    names.push_back(old.name);
    if (index != 0) names.push_back(now.name);
  }
  for (const std::uint32_t index : match.added) names.push_back(after.section_at(index)->name);
  // Symbols follow a section that moved.
  if (others) names.emplace_back(".symtab");
  return names;
}

}  // namespace reprobe
