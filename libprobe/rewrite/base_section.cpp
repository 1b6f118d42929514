#include "libprobe/rewrite/base_section.hpp"

#include <algorithm>
#include <map>

namespace reprobe {
namespace {

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

}  // namespace

std::optional<VirtAddr> wanted_base(const ElfFile& file, const ProbeFile& probes) {
  if (file.header().type == ET_REL || probes.debug_file) return std::nullopt;
  if (file.section(kBaseSection) != nullptr) return std::nullopt;
  const Section* code = code_section(file, probes);
  if (code == nullptr) return std::nullopt;
  return VirtAddr{code->addr.value + code->size.value - 1};
}

Result<void> add_base(SectionTable& table, const ElfFile& file, VirtAddr address) {
  const auto offset = file.offset_of(address);
  if (!offset) return fail(ErrorCode::internal, std::string(kBaseSection), "not in the file");
  Section base;
  base.name = kBaseSection;
  base.type = SHT_PROGBITS;
  base.flags = SHF_ALLOC;
  base.addr = address;
  base.offset = *offset;
  // Without a byte of its own: GNU strip and objcopy take a section inside another for an overlap
  // and move what stands behind it, code included (measured with binutils 2.40).
  base.size = Size{0};
  base.addralign = Size{1};
  return table.add(base, ".stapsdt.base stands in the code, as gdb and perf need it");
}

}  // namespace reprobe
