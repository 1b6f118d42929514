#include "libprobe/audit/facts.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_set>

#include "libprobe/code/decoder.hpp"
#include "libprobe/code/slot_test.hpp"
#include "libprobe/elf/limits.hpp"

namespace reprobe {
namespace {

constexpr std::byte kX86Nop{0x90};
// How far back stray nops are counted: over the room for a patch at a function's entry, whose usual
// sizes are 2 to 16 bytes.
constexpr std::uint64_t kStrayNopReach = 64;

bool is_x86(const ElfHeader& header) {
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

// Bytes of a segment that is mapped executable, and surely no code all the same: the headers, and
// what only linkers, the dynamic linker and unwinders read or write.
bool is_no_code(const ElfFile& file, VirtAddr site, const Section* section) {
  constexpr std::array<std::string_view, 4> kTables = {".interp", ".eh_frame", ".eh_frame_hdr",
                                                       ".gcc_except_table"};
  if (section != nullptr) {
    return section->type != SHT_PROGBITS ||
           std::ranges::find(kTables, section->name) != kTables.end();
  }
  const auto offset = file.offset_of(site);
  if (!offset) return true;
  const ElfHeader& header = file.header();
  const std::uint64_t elf_header = header.is64 ? 64 : 52;
  return offset->value < elf_header ||
         in_range(offset->value, header.phoff.value, header.phnum * header.phentsize);
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
    if (!have_code_sections) return Place::executable;
    return is_no_code(file, probe.site, section) ? Place::not_executable : Place::only_segment;
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

// A function that indirect branches reach begins with endbr64 or endbr32.
std::uint64_t after_endbr(const ElfFile& file, const Probe& probe) {
  const Function& function = *probe.facts.function;
  const ByteView bytes = file.bytes_at(function.start, Size{4}, probe.note.location_section);
  const bool endbr = as_text(bytes) == "\xf3\x0f\x1e\xfa" || as_text(bytes) == "\xf3\x0f\x1e\xfb";
  return function.start.value + (endbr ? 4 : 0);
}

// The one-byte nops before the site that belong to no other note.
void count_stray_nops(const ElfFile& file, const std::unordered_set<std::uint64_t>& sites,
                      Probe& probe) {
  if (!is_x86(file.header()) || !probe.facts.function) return;
  const std::uint64_t start = probe.facts.function->start.value;
  const std::uint64_t reach = std::min(kStrayNopReach, probe.site.value - start);
  const VirtAddr from{probe.site.value - reach};
  const ByteView bytes = file.bytes_at(from, Size{reach}, probe.note.location_section);
  if (bytes.size() != reach) return;
  std::size_t row = 0;
  while (row < reach && bytes[reach - 1 - row] == kX86Nop) ++row;
  std::size_t stray = 0;
  while (stray < row && !sites.contains(probe.site.value - 1 - stray)) ++stray;
  const VirtAddr behind{probe.site.value + probe.facts.nop.size};
  const ByteView next = file.bytes_at(behind, Size{1}, probe.note.location_section);
  const bool ends_row = next.empty() || next[0] != kX86Nop || sites.contains(behind.value);
  probe.facts.stray_nops_before = stray;
  probe.facts.stray_nops_at_entry =
      row != 0 && ends_row && probe.site.value - row <= after_endbr(file, probe);
}

bool may_be_code(const Probe& probe) {
  return probe.facts.place == Place::executable || probe.facts.place == Place::only_segment;
}

// Boundaries of all sites, decoded once per function.
void check_all_boundaries(const ElfFile& file, std::vector<Probe>& probes) {
  // Section, start and size: symbols and unwind information may see functions of different sizes.
  using Key = std::tuple<std::uint32_t, VirtAddr, Size>;
  std::map<Key, std::vector<std::size_t>> by_function;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    const SiteFacts& facts = probes[i].facts;
    if (!may_be_code(probes[i]) || !facts.has_bytes || !facts.function) continue;
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

// Is there a jump, call or trap at the site? In code that may be ARM's or Thumb's, by either.
bool transfers_control(const Decoder& decoder, const std::optional<Decoder>& thumb, ByteView bytes,
                       const Probe& probe) {
  const auto transfers = [&](const Decoder& by) {
    const auto instruction = by.decode(bytes, probe.site);
    return instruction && instruction->transfers_control();
  };
  const auto& function = probe.facts.function;
  const bool known = function && function->from_symbol;
  if (thumb && (!known || function->thumb) && transfers(*thumb)) return true;
  return (!thumb || !known || !function->thumb) && transfers(decoder);
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
  const auto thumb =
      file.header().machine == EM_ARM ? Decoder::open(file.header(), true) : std::nullopt;
  result.machine_known = decoder.has_value();
  for (std::size_t k = 0; k < asked.size(); ++k) {
    Probe& probe = probes[asked[k]];
    probe.facts.function = std::move(lookup.functions[k]);
    const ByteView bytes = file.bytes_at(probe.site, kLongestNop, probe.note.location_section);
    probe.facts.has_bytes = !bytes.empty();
    probe.facts.nop = nop_here(bytes, file.header(), probe.facts.function);
    count_stray_nops(file, sites, probe);
    if (probe.facts.nop.kind == NopKind::nop10 && probe.section == kSledSection)
      probe.facts.slot = slot_tested_at(file, {probe.site.value + probe.facts.nop.size});
    if (probe.facts.nop.kind != NopKind::none || !decoder) continue;
    probe.facts.looks_patched = transfers_control(*decoder, thumb, bytes, probe);
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
