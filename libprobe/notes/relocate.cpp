#include "libprobe/notes/relocate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libprobe/notes/rules.hpp"

namespace reprobe {
namespace {

struct Absolute {
  std::uint16_t machine;
  std::uint32_t type;
  unsigned width;
};

constexpr std::array kAbsolute{
    Absolute{EM_386, 1, 4},        // R_386_32
    Absolute{EM_X86_64, 1, 8},     // R_X86_64_64
    Absolute{EM_X86_64, 10, 4},    // R_X86_64_32, the word of x32
    Absolute{EM_X86_64, 11, 4},    // R_X86_64_32S
    Absolute{EM_AARCH64, 257, 8},  // R_AARCH64_ABS64
    Absolute{EM_AARCH64, 258, 4},  // R_AARCH64_ABS32
    Absolute{EM_ARM, 2, 4},        // R_ARM_ABS32
    Absolute{EM_PPC64, 38, 8},     // R_PPC64_ADDR64
    Absolute{EM_PPC64, 43, 8},     // R_PPC64_UADDR64
    Absolute{EM_PPC64, 1, 4},      // R_PPC64_ADDR32
    Absolute{EM_PPC64, 24, 4},     // R_PPC64_UADDR32
    Absolute{EM_S390, 22, 8},      // R_390_64
    Absolute{EM_S390, 4, 4},       // R_390_32
    Absolute{EM_RISCV, 2, 8},      // R_RISCV_64
    Absolute{EM_RISCV, 1, 4},      // R_RISCV_32
};

constexpr std::uint32_t R_NONE = 0;  // on every machine of the table
// R_RISCV_ADD8 .. R_RISCV_SUB64: halves of a difference, never an address on their own.
constexpr bool riscv_difference(std::uint16_t machine, std::uint32_t type) {
  return machine == EM_RISCV && type >= 33 && type <= 40;
}

constexpr std::uint64_t low_bytes(std::uint64_t value, unsigned width) {
  return width >= 8 ? value : value & 0xffffffffU;
}

}  // namespace

unsigned absolute_width(std::uint16_t machine, std::uint32_t type) {
  for (const Absolute& known : kAbsolute) {
    if (known.machine == machine && known.type == type) return known.width;
  }
  return 0;
}

NoteRelocator::NoteRelocator(const ElfFile& file, NoteReport& report)
    : file_(file), report_(report), budget_(file.source().size()) {
  for (const Section& section : file.sections()) {
    if (section.type != SHT_REL && section.type != SHT_RELA) continue;
    table_of_.try_emplace(section.info, section.index);
  }
}

bool NoteRelocator::afford(Size size) {
  if (size.value > budget_) return false;
  budget_ -= size.value;
  return true;
}

const std::vector<Symbol>& NoteRelocator::symbols_of(std::uint32_t table) {
  const auto [found, fresh] = symbols_.try_emplace(table);
  const Section* section = fresh ? file_.section_at(table) : nullptr;
  if (section != nullptr && afford(section->size)) {
    if (auto read = file_.symbols(*section)) found->second = std::move(*read);
  }
  return found->second;
}

std::vector<Relocation> NoteRelocator::relocations_of(const Section& table) {
  if (!afford(table.size)) return {};
  auto read = file_.relocations(table);
  if (!read) return {};
  std::ranges::stable_sort(*read, {}, &Relocation::offset);
  return std::move(*read);
}

NoteRelocator::Target NoteRelocator::resolve(std::uint64_t in_place,
                                             std::span<const Relocation> at_field,
                                             const std::vector<Symbol>& symbols, const Note& note) {
  const unsigned word = file_.header().word();
  const std::uint16_t machine = file_.header().machine;
  Target target{.value = in_place};
  for (const Relocation& relocation : at_field) {
    if (riscv_difference(machine, relocation.type)) continue;
    target.relocated = target.unresolved = true;
    if (relocation.type == R_NONE) return target;
    const unsigned width = absolute_width(machine, relocation.type);
    if (width == 0 || width > word || (width < word && file_.header().order == std::endian::big)) {
      report_.note(rule::note_reloc, Severity::warning, note,
                   fmt::format("relocation of the note; expected an absolute word of {}, found "
                               "type {}",
                               machine_name(machine), relocation.type));
      return target;
    }
    const std::uint64_t addend =
        relocation.addend ? static_cast<std::uint64_t>(*relocation.addend) : in_place;
    target.value = low_bytes(addend, width);
    if (relocation.symbol == 0 || relocation.symbol >= symbols.size()) return target;
    const Symbol& symbol = symbols[relocation.symbol];
    // A common symbol's value is its alignment; it and an undefined one have no address yet.
    if (symbol.shndx == SHN_UNDEF || symbol.shndx == SHN_COMMON) return target;
    if (symbol.shndx != SHN_ABS) {
      const Section* home = file_.section_at(symbol.shndx);
      if (home == nullptr || home->type == SHT_NULL) return target;
      target.section = symbol.shndx;
    }
    target.value = low_bytes(symbol.value.value + addend, width);
    target.unresolved = false;
    return target;
  }
  return target;
}

void NoteRelocator::apply(const Section& section, std::span<Note> notes,
                          std::span<const std::uint64_t> descriptors) {
  const auto table = table_of_.find(section.index);
  if (table == table_of_.end() || notes.empty()) return;
  const Section& relocation_table = *file_.section_at(table->second);
  const std::vector<Relocation> relocations = relocations_of(relocation_table);
  const std::vector<Symbol>& symbols = symbols_of(relocation_table.link);
  if (relocations.empty() && relocation_table.size.value != 0) {
    report_.at(rule::note_reloc, Severity::warning, relocation_table.header_offset,
               fmt::format("relocations of section {}; expected a readable table in section {}, "
                           "found none",
                           section.index, relocation_table.index));
  }

  const unsigned word = file_.header().word();
  for (std::size_t i = 0; i < notes.size(); ++i) {
    Note& note = notes[i];
    const auto field = [&](unsigned which, VirtAddr& value) {
      const VirtAddr at{descriptors[i] + std::uint64_t{which} * word};
      const auto here = std::ranges::lower_bound(relocations, at, {}, &Relocation::offset);
      const auto end = std::ranges::upper_bound(relocations, at, {}, &Relocation::offset);
      const Target target = resolve(value.value, std::span(here, end), symbols, note);
      value = VirtAddr{target.value};
      return target;
    };
    const Target location = field(0, note.location);
    note.location_section = location.section;
    note.location_unresolved = location.relocated && location.unresolved;
    field(1, note.base);
    note.semaphore_section = field(2, note.semaphore).section;
  }
}

}  // namespace reprobe
