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

// R_RISCV_ADD8 .. ADD64, then R_RISCV_SUB8 .. SUB64: the halves of a difference of two symbols.
constexpr std::uint32_t R_RISCV_ADD8 = 33, R_RISCV_SUB8 = 37, R_RISCV_SUB64 = 40;
constexpr bool riscv_difference(std::uint16_t machine, std::uint32_t type) {
  return machine == EM_RISCV && type >= R_RISCV_ADD8 && type <= R_RISCV_SUB64;
}

constexpr std::uint64_t low_bytes(std::uint64_t value, unsigned width) {
  return width >= 8 ? value : value & ((std::uint64_t{1} << (8 * width)) - 1);
}

}  // namespace

unsigned absolute_width(std::uint16_t machine, std::uint32_t type) {
  for (const Absolute& known : kAbsolute) {
    if (known.machine == machine && known.type == type) return known.width;
  }
  return 0;
}

std::uint32_t relative_relocation(std::uint16_t machine) {
  switch (machine) {
    case EM_386:
    case EM_X86_64:
      return 8;
    case EM_AARCH64:
      return 1027;
    case EM_ARM:
      return 23;
    case EM_PPC64:
      return 22;
    case EM_S390:
      return 12;
    case EM_RISCV:
      return 3;
    default:
      return 0;  // R_*_NONE on every machine
  }
}

NoteRelocator::NoteRelocator(const ElfFile& file, NoteReport& report)
    : file_(file), report_(report), budget_(file.source().size()) {
  for (const Section& section : file.sections()) {
    if (!section.holds_relocations()) continue;
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

NoteRelocations NoteRelocator::relocations_of(const Section& section) {
  static const std::vector<Symbol> kNone;
  NoteRelocations result{.entries = {}, .symbols = &kNone};
  const auto found = table_of_.find(section.index);
  if (found == table_of_.end()) return result;
  const Section& table = *file_.section_at(found->second);
  auto read = file_.relocations(table);
  if (!afford(table.size) || !read) {
    report_.at(rule::note_reloc, Severity::warning, table.header_offset,
               fmt::format("relocations of section {}; expected a readable table in section {}, "
                           "found none",
                           section.index, table.index));
    return result;
  }
  std::ranges::stable_sort(*read, {}, &Relocation::offset);
  result.entries = std::move(*read);
  result.symbols = &symbols_of(table.link);
  return result;
}

Bytes NoteRelocator::with_differences(const NoteRelocations& relocations, ByteView bytes) const {
  Bytes changed;
  const std::endian order = file_.header().order;
  for (const Relocation& relocation : relocations.entries) {
    if (!riscv_difference(file_.header().machine, relocation.type)) continue;
    if (relocation.symbol >= relocations.symbols->size()) continue;
    const bool subtract = relocation.type >= R_RISCV_SUB8;
    const unsigned width = 1U << (relocation.type - (subtract ? R_RISCV_SUB8 : R_RISCV_ADD8));
    const std::uint64_t at = relocation.offset.value;
    if (at > bytes.size() || bytes.size() - at < width) continue;
    if (changed.empty()) changed.assign(bytes.begin(), bytes.end());
    const std::uint64_t term = (*relocations.symbols)[relocation.symbol].value.value +
                               static_cast<std::uint64_t>(relocation.addend.value_or(0));
    const std::uint64_t now = load_uint(changed, at, width, order);
    store_uint(changed, at, width, order, low_bytes(subtract ? now - term : now + term, width));
  }
  return changed;
}

NoteRelocator::Target NoteRelocator::resolve(const Relocation& relocation,
                                             const std::vector<Symbol>& symbols,
                                             std::uint64_t in_place, const Note& note) {
  const ElfHeader& header = file_.header();
  Target target{.value = in_place, .section = 0, .unresolved = true};
  if (relocation.type == R_NONE) return target;
  const unsigned width = absolute_width(header.machine, relocation.type);
  // A narrow word at the start of a big-endian field would be its upper half.
  if (width == 0 || width > header.word() ||
      (width < header.word() && header.order == std::endian::big)) {
    report_.note(rule::note_reloc, Severity::warning, note,
                 fmt::format("relocation of the note; expected an absolute word of {}, found type "
                             "{}",
                             machine_name(header.machine), relocation.type));
    return target;
  }
  const std::uint64_t addend =
      relocation.addend ? static_cast<std::uint64_t>(*relocation.addend) : in_place;
  target.value = low_bytes(addend, width);
  if (relocation.symbol == 0 || relocation.symbol >= symbols.size()) return target;
  const Symbol& symbol = symbols[relocation.symbol];
  // A common symbol's value is its alignment; it and an undefined one have no address yet.
  if (symbol.shndx == SHN_UNDEF || symbol.shndx == SHN_COMMON) {
    target.undefined = true;
    return target;
  }
  if (symbol.shndx != SHN_ABS) {
    const Section* home = file_.section_at(symbol.shndx);
    if (home == nullptr || home->type == SHT_NULL) return target;
    target.section = symbol.shndx;
  }
  target.value = low_bytes(symbol.value.value + addend, width);
  target.unresolved = false;
  return target;
}

NoteRelocator::Target NoteRelocator::field(const NoteRelocations& relocations, std::uint64_t at,
                                           std::uint64_t in_place, const Note& note) {
  auto next = std::ranges::lower_bound(relocations.entries, VirtAddr{at}, {}, &Relocation::offset);
  while (next != relocations.entries.end() && next->offset.value == at) {
    if (!riscv_difference(file_.header().machine, next->type)) {
      return resolve(*next, *relocations.symbols, in_place, note);
    }
    ++next;
  }
  return {.value = in_place, .section = 0, .unresolved = false};
}

void NoteRelocator::apply(const NoteRelocations& relocations, std::span<Note> notes,
                          std::span<const std::uint64_t> descriptors) {
  const unsigned word = file_.header().word();
  for (std::size_t i = 0; i < notes.size(); ++i) {
    Note& note = notes[i];
    const Target location = field(relocations, descriptors[i], note.location.value, note);
    const Target base = field(relocations, descriptors[i] + word, note.base.value, note);
    const Target semaphore =
        field(relocations, descriptors[i] + 2 * std::uint64_t{word}, note.semaphore.value, note);
    note.location = VirtAddr{location.value};
    note.location_section = location.section;
    note.location_unresolved = location.unresolved;
    note.base = VirtAddr{base.value};
    note.semaphore = VirtAddr{semaphore.value};
    note.semaphore_section = semaphore.section;
    note.semaphore_undefined = semaphore.undefined;
  }
}

}  // namespace reprobe
