#include "libprobe/rewrite/base_section.hpp"

#include <algorithm>
#include <map>

namespace reprobe {
namespace {

std::uint64_t distance(const Section& section) { return section.addr.value - section.offset.value; }

// Both ends lie where one segment puts them: a hostile section is longer than its segment.
bool holds_code(const ElfFile& file, const Section& section) {
  if (!section.executable() || section.nobits() || section.size.value == 0) return false;
  const std::uint64_t size = section.size.value - 1;
  const auto first = file.offset_of(section.addr);
  const auto last = file.offset_of(VirtAddr{section.addr.value + size});
  return first == section.offset && last == FileOffset{section.offset.value + size};
}

// The section with most sites; ".text" where it has as many as any.
const Section* code_section(const ElfFile& file, const ProbeFile& probes) {
  std::map<std::uint32_t, std::size_t> sites;
  for (const Probe& probe : probes.probes) {
    if (probe.verdict == Verdict::dangling) continue;
    const Section* section = file.section_containing(probe.site);
    if (section != nullptr && holds_code(file, *section)) ++sites[section->index];
  }
  const Section* best = nullptr;
  for (const auto& [index, count] : sites) {
    const Section& section = *file.section_at(index);
    if (best == nullptr || count > sites[best->index] ||
        (count == sites[best->index] && section.name == ".text")) {
      best = &section;
    }
  }
  return best;
}

bool inside_a_section(const ElfFile& file, const Section& base) {
  return std::ranges::any_of(file.sections(), [&](const Section& section) {
    return &section != &base && section.allocated() && !section.nobits() &&
           section.addr < base.addr && section.contains(base.addr);
  });
}

}  // namespace

std::optional<EmptyPlace> place_for_new_base(const ElfFile& file, const ProbeFile& probes) {
  if (file.header().type == ET_REL || probes.debug_file) return std::nullopt;
  if (file.section(kBaseSection) != nullptr) return std::nullopt;
  const Section* code = code_section(file, probes);
  if (code == nullptr) return std::nullopt;
  return empty_section_place(file, *code, std::nullopt);
}

const Section* misplaced_base(const ElfFile& file, const ProbeFile& probes) {
  if (file.header().type == ET_REL || probes.debug_file) return nullptr;
  const Section* base = file.section(kBaseSection);
  const Section* code = code_section(file, probes);
  if (base == nullptr || code == nullptr || base->type != SHT_PROGBITS) return nullptr;
  const bool right =
      base->allocated() && distance(*base) == distance(*code) && !inside_a_section(file, *base);
  return right ? nullptr : base;
}

std::optional<EmptyPlace> place_for_base(const ElfFile& file, const ProbeFile& probes,
                                         const Section& base) {
  return empty_section_place(file, *code_section(file, probes), base.index);
}

}  // namespace reprobe
