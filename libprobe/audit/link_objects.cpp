#include "libprobe/audit/link_objects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "libprobe/audit/aliases.hpp"

namespace reprobe {
namespace {

// A relocation's own field, and the instructions around it that linkers rewrite: the x86-64 psABI
// (GOTPCRELX, TLS) and PowerPC's (the nop behind a call that restores r2) go this far.
constexpr std::uint64_t kBeforeRelocation = 4;
constexpr std::uint64_t kBehindRelocation = 8;
// So many bytes that are alike are no accident; of less code a function's symbol has to be there.
constexpr std::uint64_t kEnoughBytes = 16;
// What remembering one place costs, beside comparing its bytes.
constexpr std::uint64_t kPerPlace = 256;
// Names longer than this are not looked for: in a hostile file each may be the rest of one string.
constexpr std::size_t kLongestMember = 1024;

using Gaps = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

void add_relocated(const ElfFile& object, const Section& table, std::uint64_t size, Gaps& gaps) {
  const auto relocations = object.relocations(table);
  if (!relocations) {
    gaps.emplace_back(0, size);  // nothing is known
    return;
  }
  for (const Relocation& relocation : *relocations) {
    const std::uint64_t at = relocation.offset.value;
    if (at >= size) continue;
    gaps.emplace_back(at - std::min(at, kBeforeRelocation), std::min(size, at + kBehindRelocation));
  }
}

Gaps joined(Gaps gaps) {
  std::ranges::sort(gaps);
  Gaps result;
  for (const auto& [begin, end] : gaps) {
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

void read_functions(LinkObject& object) {
  std::uint64_t budget = object.file.source().size();  // tables may overlap in a hostile file
  for (const Section& section : object.file.sections()) {
    if (section.type != SHT_SYMTAB || section.size.value > budget) continue;
    budget -= section.size.value;
    const auto table = object.file.symbol_table(section);
    for (std::uint32_t i = 1; table && i < table->size(); ++i) {
      const Symbol symbol = table->at(i);
      const auto code = symbol.in_section() ? object.code.find(symbol.shndx) : object.code.end();
      if (code == object.code.end() || symbol.type != STT_FUNC || symbol.binding != STB_GLOBAL)
        continue;
      const std::string_view name = table->name(symbol);
      const bool shared = (code->second.section->flags & SHF_GROUP) != 0;
      if (!shared && !name.empty() && name.size() <= kLongestMember)
        code->second.functions.emplace_back(name, symbol.value.value);
    }
  }
}

void read_code(LinkObject& object) {
  const ElfFile& file = object.file;
  for (const Note& note : object.notes) {
    const Section* section = file.section_at(note.location_section);
    if (section == nullptr || !section->executable() || note.location_unresolved) continue;
    const auto bytes = file.contents(*section);
    if (bytes && !bytes->empty()) {
      object.code.try_emplace(section->index, ObjectCode{section, *bytes, {}, {}, {}});
    }
  }
  std::uint64_t budget = file.source().size();
  for (const Section& table : file.sections()) {
    const auto code = table.holds_relocations() ? object.code.find(table.info) : object.code.end();
    if (code == object.code.end()) continue;
    if (table.size.value > budget) {
      code->second.relocated.emplace_back(0, code->second.bytes.size());
      continue;
    }
    budget -= table.size.value;
    add_relocated(file, table, code->second.bytes.size(), code->second.relocated);
  }
  for (auto& [index, code] : object.code) {
    code.relocated = joined(std::move(code.relocated));
    code.fixed = code.bytes.size();
    for (const auto& [begin, end] : code.relocated) code.fixed -= end - begin;
  }
  read_functions(object);
}

// What tells the notes of different probes apart, in an object and in the output.
std::string key_of(const Note& note) {
  return note.provider + '\0' + note.name + '\0' + note.arguments;
}

struct SectionPlace {
  const LinkObject* object{};
  std::size_t note{};
};

// One linked file against all objects.
class Matcher {
 public:
  Matcher(const ElfFile& file, ProbeFile& probes) : file_(file), probes_(probes.probes) {
    constexpr std::uint64_t kPerByte = 16;  // of a sane file most places fit at the first try
    budget_ = std::numeric_limits<std::uint64_t>::max() / kPerByte;
    budget_ = std::min(budget_, file.source().size()) * kPerByte;
    for (std::size_t i = 0; i < probes_.size(); ++i) by_key_[key_of(probes_[i].note)].push_back(i);
    read_symbols();
  }

  void add(const LinkObject& object) {
    for (std::size_t n = 0; n < object.notes.size(); ++n) find_live({&object, n});
    for (std::size_t begin = 0; begin < object.notes.size();) {
      std::size_t end = begin + 1;
      while (end < object.notes.size() && object.notes[end].section == object.notes[begin].section)
        ++end;
      find_discarded(object, begin, end);
      begin = end;
    }
  }

  void conclude() {
    for (auto& [i, evidence] : discarded_) {
      if (!live_.contains(i)) set(i, Verdict::dangling, std::move(evidence));
    }
    for (auto& [i, evidence] : live_) set(i, Verdict::live, std::move(evidence));
  }

 private:
  void set(std::size_t i, Verdict verdict, std::string evidence) {
    probes_[i].verdict = verdict;
    probes_[i].evidence = {std::move(evidence)};
  }

  bool afford(std::uint64_t bytes) {
    if (bytes > budget_) return false;
    budget_ -= bytes;
    return true;
  }

  void read_symbols() {
    std::uint64_t left = file_.source().size();
    for (const Section& section : file_.sections()) {
      if (!section.holds_symbols() || section.size.value > left) continue;
      left -= section.size.value;
      const auto table = file_.symbol_table(section);
      for (std::uint32_t i = 1; table && i < table->size(); ++i) {
        const Symbol symbol = table->at(i);
        if (symbol.type != STT_FUNC || !symbol.in_section()) continue;
        const std::string_view name = table->name(symbol);
        if (name.size() <= kLongestMember) symbols_.emplace(name, symbol.value.value);
      }
    }
  }

  // --- Live: the code that the object's note points at stands where the note says ---

  void find_live(const SectionPlace& place) {
    const Note& own = place.object->notes[place.note];
    const auto code = place.object->code.find(own.location_section);
    const auto same = by_key_.find(key_of(own));
    if (code == place.object->code.end() || same == by_key_.end()) return;
    for (const std::size_t i : same->second) {
      if (!afford(kEnoughBytes)) return;
      const Probe& probe = probes_[i];
      if (live_.contains(i) || probe.facts.relocation == RelocationSays::discarded) continue;
      const VirtAddr start{probe.site.value - own.location.value};
      if (!stands_at(code->second, start)) continue;
      live_[i] = fmt::format(
          "{}: its {} stands at {:#x} with all {} bytes that no relocation "
          "changes, and the site is {:#x} into it",
          place.object->name, code->second.section->name, start.value, code->second.fixed,
          own.location.value);
    }
  }

  // Most notes of a section give it one start.
  bool stands_at(const ObjectCode& code, VirtAddr start) {
    const auto [known, fresh] = stands_.try_emplace({&code, start});
    if (fresh) known->second = afford(kPerPlace) && compare_code(code, start);
    return known->second;
  }

  bool compare_code(const ObjectCode& code, VirtAddr start) {
    const Section* home = file_.section_containing(start);
    if (home == nullptr || !home->executable()) return false;
    const Size size{code.bytes.size()};
    if (size.value > home->size.value - (start.value - home->addr.value)) return false;
    const ByteView here = file_.bytes_at(start, size);
    if (here.size() != size.value) return false;
    std::uint64_t at = 0;
    for (const auto& [begin, end] : code.relocated) {
      if (!same_bytes(code.bytes, here, at, begin)) return false;
      at = end;
    }
    if (!same_bytes(code.bytes, here, at, size.value)) return false;
    return code.fixed >= kEnoughBytes || has_function(code, start);
  }

  bool same_bytes(ByteView a, ByteView b, std::uint64_t begin, std::uint64_t end) {
    const auto part = [&](ByteView bytes) {
      return bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    };
    return afford(end - begin) && std::ranges::equal(part(a), part(b));
  }

  bool has_function(const ObjectCode& code, VirtAddr start) const {
    return std::ranges::any_of(code.functions, [&](const auto& function) {
      const auto [first, last] = symbols_.equal_range(function.first);
      return std::any_of(first, last, [&](const auto& symbol) {
        return symbol.second == start.value + function.second;
      });
    });
  }

  // --- Discarded: the notes say the bare offsets in the object's section ---

  // The notes [begin, end) are a note section of the object: linkers keep it whole or not at all.
  void find_discarded(const LinkObject& object, std::size_t begin, std::size_t end) {
    const auto notes = std::span(object.notes).subspan(begin, end - begin);
    const auto first = by_key_.find(key_of(notes.front()));
    if (first == by_key_.end() || code_begins_at_zero()) return;
    std::map<std::size_t, std::string> found;
    std::size_t times = 0;
    for (const std::size_t at : first->second) {
      if (!is_same_section(notes, at)) continue;
      const std::size_t before = found.size();
      for (const auto& [index, code] : object.code) add_discarded(object, code, notes, at, found);
      times += found.size() != before ? 1 : 0;
    }
    // The same notes twice: another object has them too, and which is whose is not known.
    if (times != 1) return;
    discarded_.merge(found);
  }

  // Where the code begins at 0, an offset is an address.
  bool code_begins_at_zero() const {
    const Section* section = file_.section_containing(VirtAddr{0});
    return section != nullptr && section->executable();
  }

  bool is_same_section(std::span<const Note> notes, std::size_t at) {
    if (notes.size() > probes_.size() - at) return false;
    for (std::size_t k = 0; k < notes.size(); ++k) {
      const Note& note = probes_[at + k].note;
      if (!afford(1) || note.section != probes_[at].note.section) return false;
      if (note.provider != notes[k].provider || note.name != notes[k].name ||
          note.arguments != notes[k].arguments)
        return false;
    }
    return true;
  }

  // The notes from `at` on that point into `code`, if none of them was given an address.
  void add_discarded(const LinkObject& object, const ObjectCode& code, std::span<const Note> notes,
                     std::size_t at, std::map<std::size_t, std::string>& found) {
    std::vector<std::size_t> its;
    for (std::size_t k = 0; k < notes.size(); ++k) {
      if (!afford(1)) return;
      if (notes[k].location_section != code.section->index) continue;
      const Probe& probe = probes_[at + k];
      if (probe.note.location != notes[k].location || notes[k].location_unresolved ||
          probe.facts.relocation == RelocationSays::live)
        return;
      its.push_back(at + k);
    }
    // A function of it that the output has was not discarded with it.
    if (std::ranges::any_of(code.functions, [&](const auto& function) {
          return symbols_.contains(function.first);
        }))
      return;
    for (const std::size_t i : its) {
      found[i] = fmt::format(
          "{}: its {} is not in the file: instead of an address the note says the offset {:#x} in "
          "it{}",
          object.name, code.section->name, probes_[i].note.location.value,
          its.size() == 1 ? std::string()
                          : fmt::format(", as its {} other notes do", its.size() - 1));
    }
  }

  const ElfFile& file_;
  std::vector<Probe>& probes_;
  std::unordered_map<std::string, std::vector<std::size_t>> by_key_;
  std::unordered_multimap<std::string_view, std::uint64_t> symbols_;
  std::map<std::pair<const ObjectCode*, VirtAddr>, bool> stands_;
  std::map<std::size_t, std::string> live_, discarded_;  // index -> evidence
  std::uint64_t budget_{};
};

}  // namespace

void LinkObjects::add(std::string name, ElfFile object) {
  // RISC-V linkers shorten code: neither its bytes nor its offsets are the object's.
  const ElfHeader& header = object.header();
  if (header.type != ET_REL || header.machine == EM_RISCV) return;
  NoteScan scan = scan_notes(object);
  if (scan.notes.empty()) return;
  auto added = std::make_unique<LinkObject>(
      LinkObject{std::move(name), std::move(object), std::move(scan.notes), {}});
  read_code(*added);
  objects_.push_back(std::move(added));
}

void LinkObjects::judge(const ElfFile& file, ProbeFile& probes) const {
  const std::uint16_t type = file.header().type;
  if (objects_.empty() || probes.probes.empty() || (type != ET_EXEC && type != ET_DYN)) return;
  Matcher matcher(file, probes);
  for (const auto& object : objects_) {
    if (object->file.header().machine == file.header().machine) matcher.add(*object);
  }
  matcher.conclude();
  list_aliases(probes);
}

}  // namespace reprobe
