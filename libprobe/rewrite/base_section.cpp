#include "libprobe/rewrite/base_section.hpp"

#include <algorithm>
#include <map>

namespace reprobe {
namespace {

// Where code stands in memory relative to the file; equal for all sections of one segment.
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

}  // namespace

std::optional<VirtAddr> wanted_base(const ElfFile& file, const ProbeFile& probes) {
  if (file.header().type == ET_REL || probes.debug_file) return std::nullopt;
  const Section* code = code_section(file, probes);
  if (code == nullptr) return std::nullopt;
  const Section* base = file.section(kBaseSection);
  if (base != nullptr && base->nobits()) return std::nullopt;
  if (base != nullptr && base->allocated() && distance(*base) == distance(*code)) {
    return std::nullopt;
  }
  return VirtAddr{code->addr.value + code->size.value - 1};
}

Result<void> place_base(SectionTable& table, const ElfFile& file, VirtAddr address) {
  constexpr const char* kWhy = ".stapsdt.base stands in the code, as gdb and perf need it";
  const auto offset = file.offset_of(address);
  if (!offset) return fail(ErrorCode::internal, std::string(kBaseSection), "not in the file");
  if (const Section* base = file.section(kBaseSection); base != nullptr) {
    for (auto done : {table.set(*base, SectionField::flags, base->flags | SHF_ALLOC, kWhy),
                      table.set(*base, SectionField::addr, address.value, kWhy),
                      table.set(*base, SectionField::offset, offset->value, kWhy)}) {
      if (!done) return done;
    }
    return {};
  }
  Section base;
  base.name = kBaseSection;
  base.type = SHT_PROGBITS;
  base.flags = SHF_ALLOC;
  base.addr = address;
  base.offset = *offset;
  base.size = Size{1};
  base.addralign = Size{1};
  return table.add(base, kWhy);
}

Result<void> move_base_symbols(Plan& plan, const ElfFile& file, VirtAddr address) {
  const Section* base = file.section(kBaseSection);
  const Section* symtab = file.section(".symtab");
  if (base == nullptr || symtab == nullptr || symtab->type != SHT_SYMTAB) return {};
  const auto symbols = file.symbols(*symtab);
  if (!symbols) return {};  // nothing can refer to a table that nobody can read
  const unsigned word = file.header().word();
  // sh_entsize may be 0, not stated; Elf64_Sym has 24 bytes, Elf32_Sym 16.
  const std::uint64_t own_size = file.header().is64 ? 24 : 16;
  const std::uint64_t stride = symtab->entsize.value != 0 ? symtab->entsize.value : own_size;
  const std::uint64_t value_at = file.header().is64 ? 8 : 4;  // st_value in Elf64_Sym, Elf32_Sym
  for (const Symbol& symbol : *symbols) {
    if (symbol.shndx != base->index || symbol.value != base->addr) continue;
    Bytes value(word);
    store_uint(value, 0, word, file.header().order, address.value);
    const FileOffset at{symtab->offset.value + symbol.index * stride + value_at};
    auto done = plan.replace(file.source(), at, std::move(value),
                             "the symbol of .stapsdt.base moves with it");
    if (!done) return done;
  }
  return {};
}

}  // namespace reprobe
