#include "libprobe/audit/facts.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "libprobe/code/decoder.hpp"
#include "libprobe/elf/limits.hpp"

namespace reprobe {
namespace {

constexpr std::byte kX86Nop{0x90};
// How far back stray nops are counted; more than two already say all there is to say.
constexpr std::uint64_t kStrayNopReach = 16;

bool is_x86_file(const ElfHeader& header) {
  return header.machine == EM_X86_64 || header.machine == EM_386;
}

// Do the headers of sections and segments agree about where code is? Tools that move only one of
// them (objcopy --change-section-address) leave a file whose section headers prove nothing.
bool sections_agree(const ElfFile& file) {
  return std::ranges::all_of(file.sections(), [&](const Section& section) {
    if (!section.executable() || section.nobits() || section.size.value == 0) return true;
    const auto offset = file.offset_of(section.addr);
    return offset && *offset == section.offset;
  });
}

Place place_of(const ElfFile& file, const Probe& probe, bool have_code_sections) {
  if (file.header().type == ET_REL) {
    const Section* section = file.section_at(probe.note.location_section);
    if (section == nullptr || section->index == 0) return Place::outside;
    return section->executable() ? Place::executable : Place::not_executable;
  }
  const Segment* segment = file.load_segment(probe.site);
  const Section* section = file.section_containing(probe.site);
  if (section != nullptr && section->executable()) return Place::executable;
  if (segment != nullptr && (segment->flags & PF_X) != 0) {
    return have_code_sections ? Place::only_segment : Place::executable;
  }
  return section != nullptr || segment != nullptr ? Place::not_executable : Place::outside;
}

// What the relocations that --emit-relocs keeps say about the notes' locations.
class KeptRelocations {
 public:
  KeptRelocations(const ElfFile& file, const NoteScan& scan)
      : file_(file), budget_(file.source().size()) {
    if (file.header().type == ET_REL) return;
    std::unordered_set<std::uint32_t> note_sections;
    for (const Note& note : scan.notes) {
      note_sections.insert(note.section);
      asked_.emplace(location_of(note), std::nullopt);
    }
    for (const Section& section : file.sections()) {
      if (!section.holds_relocations()) continue;
      if (section.allocated() || !note_sections.contains(section.info)) continue;
      read(section);
    }
  }

  [[nodiscard]] RelocationSays about(const Note& note) const {
    const auto it = asked_.find(location_of(note));
    if (it == asked_.end() || !it->second) return RelocationSays::nothing;
    if (it->second->discarded) return RelocationSays::discarded;
    return it->second->target == note.location.value ? RelocationSays::live
                                                     : RelocationSays::nothing;
  }

 private:
  struct Entry {
    bool discarded{};
    std::optional<std::uint64_t> target;  // symbol value + addend
  };
  using Place = std::pair<std::uint32_t, std::uint64_t>;  // section, offset in it

  // The location is the descriptor's first word.
  static Place location_of(const Note& note) { return {note.section, note.offset + note.desc}; }

  void read(const Section& table) {
    // Tables that overlap could be decoded again and again: all together may cost the file's size.
    if (table.size.value > budget_) return;
    budget_ -= table.size.value;
    const Section* target = file_.section_at(table.info);
    const Section* symtab = file_.section_at(table.link);
    if (target == nullptr || symtab == nullptr) return;
    const auto symbols = file_.symbol_table(*symtab);
    const auto relocations = file_.relocations(table);
    if (!symbols || !relocations) return;
    for (const Relocation& relocation : *relocations) {
      // Offsets of a linked file are addresses; a note section that is not loaded has address 0.
      const auto asked = asked_.find({target->index, relocation.offset.value - target->addr.value});
      if (asked == asked_.end()) continue;
      // R_*_NONE beside another relocation only keeps a section alive (`.reloc`).
      const Entry found = entry(relocation, *symbols);
      if (!asked->second || asked->second->discarded) asked->second = found;
    }
  }

  Entry entry(const Relocation& relocation, const SymbolTable& symbols) const {
    Entry entry;
    // Every processor supplement gives R_*_NONE the number 0. On RISC-V it proves nothing: lld
    // relaxes code there and writes the relocations of live notes as NONE, too.
    entry.discarded = relocation.type == 0 && file_.header().machine != EM_RISCV;
    const Symbol symbol = symbols.at(relocation.symbol);
    if (!symbol.in_section() || file_.section_at(symbol.shndx) == nullptr || !relocation.addend) {
      return entry;
    }
    entry.target = symbol.value.value + static_cast<std::uint64_t>(*relocation.addend);
    if (!file_.header().is64) *entry.target &= 0xffffffffU;
    return entry;
  }

  const ElfFile& file_;
  std::uint64_t budget_;
  std::map<Place, std::optional<Entry>> asked_;
};

Nop nop_here(ByteView bytes, const ElfHeader& header, const std::optional<Function>& function) {
  if (header.machine != EM_ARM) return nop_at(bytes, header, false);
  if (function && (function->from_symbol)) return nop_at(bytes, header, function->thumb);
  // A stripped ARM file does not say which instruction set a function uses.
  const Nop arm = nop_at(bytes, header, false);
  return arm.kind != NopKind::none ? arm : nop_at(bytes, header, true);
}

std::size_t stray_nops_before(const ElfFile& file, const Probe& probe,
                              const std::unordered_set<std::uint64_t>& sites) {
  if (!is_x86_file(file.header()) || !probe.facts.function) return 0;
  const std::uint64_t start = probe.facts.function->start.value;
  const std::uint64_t reach = std::min(kStrayNopReach, probe.site.value - start);
  const VirtAddr from{probe.site.value - reach};
  const ByteView bytes = file.bytes_at(from, Size{reach}, probe.note.location_section);
  if (bytes.size() != reach) return 0;
  std::size_t count = 0;
  while (count < reach && bytes[reach - 1 - count] == kX86Nop &&
         !sites.contains(probe.site.value - 1 - count)) {
    ++count;
  }
  return count;
}

bool may_be_code(const Probe& probe) {
  return probe.facts.place == Place::executable || probe.facts.place == Place::only_segment;
}

// Boundaries of all sites, decoded once per function. A byte that is neither a nop nor what a
// patching tool leaves needs no decoding: it is no site.
void check_all_boundaries(const ElfFile& file, std::vector<Probe>& probes) {
  // Section, start and size: symbols and unwind information may see functions of different sizes.
  using Key = std::tuple<std::uint32_t, VirtAddr, Size>;
  std::map<Key, std::vector<std::size_t>> by_function;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    const SiteFacts& facts = probes[i].facts;
    if (!may_be_code(probes[i]) || !facts.has_bytes || !facts.function) continue;
    if (facts.nop.kind == NopKind::none && !facts.looks_patched) continue;
    const Function& function = *facts.function;
    by_function[{probes[i].note.location_section, function.start, function.size}].push_back(i);
  }
  Size budget{file.source().size()};
  for (const auto& [key, indices] : by_function) {
    std::vector<VirtAddr> sites;
    sites.reserve(indices.size());
    for (const std::size_t i : indices) sites.push_back(probes[i].site);
    const auto checks = check_boundaries(file, *probes[indices.front()].facts.function,
                                         std::get<0>(key), sites, &budget);
    for (std::size_t k = 0; k < indices.size(); ++k) probes[indices[k]].facts.boundary = checks[k];
  }
}

// Where more notes are sites without the base than with it, the base is wrong for all of them. And
// a note that says no base may still have moved with those that do.
void doubt_the_base(const ElfFile& file, ProbeFile& result) {
  const auto unmoved = [&](const Probe& probe) { return probe.site == probe.note.location; };
  std::uint64_t distance = 0;
  std::size_t wrong = 0;
  std::size_t right = 0;
  for (const Probe& probe : result.probes) {
    if (unmoved(probe)) continue;
    distance = probe.site.value - probe.note.location.value;
    ++(probe.facts.site_if_not_moved ? wrong : right);
  }
  if (distance == 0 || result.shift.proven) return;
  for (Probe& probe : result.probes) {
    if (unmoved(probe)) {
      probe.facts.site_if_shifted = probe.facts.site_if_shifted ||
                                    (!is_site(file, probe.site) &&
                                     is_site(file, VirtAddr{probe.note.location.value + distance}));
    } else if (wrong > right && is_site(file, probe.note.location)) {
      probe.facts.site_if_not_moved = true;
    }
  }
}

bool has_code(const ElfFile& file) {
  return std::ranges::any_of(
             file.sections(),
             [](const Section& s) { return s.executable() && s.size.value != 0; }) ||
         std::ranges::any_of(file.segments(), [](const Segment& s) {
           return s.type == PT_LOAD && (s.flags & PF_X) != 0 && s.filesz.value != 0;
         });
}

bool no_code_bytes(const ElfFile& file) {
  bool any_code = false;
  for (const Section& section : file.sections()) {
    if (!section.executable() || section.size.value == 0) continue;
    any_code = true;
    if (!section.nobits()) return false;
  }
  return any_code;
}

}  // namespace

void gather_facts(const ElfFile& file, ProbeFile& result) {
  std::vector<Probe>& probes = result.probes;
  const bool relocatable = file.header().type == ET_REL;
  result.debug_file = no_code_bytes(file);
  result.has_code = has_code(file);
  const bool have_code_sections =
      std::ranges::any_of(file.sections(), [](const Section& s) { return s.executable(); }) &&
      (relocatable || result.debug_file || sections_agree(file));

  std::vector<CodeAddress> addresses;
  std::vector<std::size_t> asked;
  std::unordered_set<std::uint64_t> sites;
  TextBudget names_budget(file.source().size());
  for (std::size_t i = 0; i < probes.size(); ++i) {
    Probe& probe = probes[i];
    probe.facts.place = place_of(file, probe, have_code_sections);
    if (!relocatable) probe.site_offset = file.offset_of(probe.site);
    const Section* section = relocatable ? file.section_at(probe.note.location_section)
                                         : file.section_containing(probe.site);
    if (section != nullptr && section->index != 0) {
      probe.section = names_budget.take(section->name);
      if (relocatable && !section->nobits() && probe.site.value < section->size.value) {
        probe.site_offset = FileOffset{section->offset.value + probe.site.value};
      }
    }
    if (!may_be_code(probe)) continue;
    addresses.push_back({probe.site, probe.note.location_section});
    asked.push_back(i);
    sites.insert(probe.site.value);
  }

  FunctionLookup lookup = find_functions(file, addresses);
  result.has_symtab = lookup.has_symtab;
  result.has_unwind = lookup.has_unwind;
  const KeptRelocations kept(file, result.scan);
  const auto decoder = Decoder::open(file.header(), false);
  result.machine_known = decoder.has_value();
  for (std::size_t k = 0; k < asked.size(); ++k) {
    Probe& probe = probes[asked[k]];
    probe.facts.function = std::move(lookup.functions[k]);
    const ByteView bytes = file.bytes_at(probe.site, kLongestNop, probe.note.location_section);
    probe.facts.has_bytes = !bytes.empty();
    probe.facts.nop = nop_here(bytes, file.header(), probe.facts.function);
    probe.facts.stray_nops_before = stray_nops_before(file, probe, sites);
    if (probe.facts.nop.kind != NopKind::none || !decoder) continue;
    const auto instruction = decoder->decode(bytes, probe.site);
    probe.facts.looks_patched = instruction && instruction->transfers_control();
  }
  for (Probe& probe : probes) {
    probe.facts.relocation = kept.about(probe.note);
    probe.facts.site_if_shifted =
        result.shift.distance != 0 && !result.shift.proven &&
        is_site(file, VirtAddr{probe.note.location.value + result.shift.distance});
    probe.facts.site_if_not_moved =
        !relocatable && !result.shift.proven && probe.site != probe.note.location &&
        !is_site(file, probe.site) && is_site(file, probe.note.location);
  }
  doubt_the_base(file, result);
  check_all_boundaries(file, probes);
}

}  // namespace reprobe
