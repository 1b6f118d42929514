#include "libprobe/notes/load_relocations.hpp"

#include <utility>

#include "libprobe/notes/relocate.hpp"

namespace reprobe {
// SHT_RELR needs no reading: it only lists words whose file bytes already hold the value.
void LoadRelocations::read_all() {
  if (std::exchange(read_, true)) return;
  // Tables that overlap could be decoded again and again: all together may cost the file's size.
  std::uint64_t budget = file_.source().size();
  for (const Section& section : file_.sections()) {
    if (!section.holds_relocations() || !section.allocated()) continue;
    if (section.size.value > budget) continue;
    budget -= section.size.value;
    read(section);
  }
}

void LoadRelocations::read(const Section& table) {
  const auto relocations = file_.relocations(table);
  if (!relocations) return;
  const Section* dynsym = file_.section_at(table.link);
  std::optional<SymbolTable> symbols;
  if (dynsym != nullptr && dynsym->index != 0) {
    if (auto opened = file_.symbol_table(*dynsym)) symbols.emplace(std::move(*opened));
  }
  for (const Relocation& relocation : *relocations) {
    const Section* target = file_.section_containing(relocation.offset);
    if (target == nullptr || (target->name != kStapsdtSection && target->type != SHT_NOTE))
      continue;
    values_[relocation.offset.value] = value_of(relocation, symbols ? &*symbols : nullptr);
  }
}

LoadRelocations::Value LoadRelocations::value_of(const Relocation& relocation,
                                                 const SymbolTable* symbols) const {
  const std::uint16_t machine = file_.header().machine;
  const bool in_place = !relocation.addend;
  const auto addend = static_cast<std::uint64_t>(relocation.addend.value_or(0));
  if (relocation.type == 0) return {.value = std::nullopt, .in_place = true};
  if (relocation.type == relative_relocation(machine))
    return {.value = addend, .in_place = in_place};
  if (absolute_width(machine, relocation.type) != file_.header().word() || symbols == nullptr) {
    return {};
  }
  const Symbol symbol = symbols->at(relocation.symbol);
  if (!symbol.in_section()) return {};
  return {.value = symbol.value.value + addend, .in_place = in_place};
}

std::uint64_t LoadRelocations::patched(std::uint64_t at, std::uint64_t in_place,
                                       bool& unknown) const {
  const auto found = values_.find(at);
  if (found == values_.end()) return in_place;
  const Value& known = found->second;
  if (!known.value) {
    unknown = unknown || !known.in_place;
    return in_place;
  }
  const std::uint64_t value = *known.value + (known.in_place ? in_place : 0);
  return file_.header().is64 ? value : value & 0xffffffffU;
}

void LoadRelocations::apply(const Section& section, std::span<Note> notes,
                            std::span<const std::uint64_t> descriptors) {
  if (notes.empty()) return;  // most files: their tables may be the larger part of them
  read_all();
  if (values_.empty()) return;
  const unsigned word = file_.header().word();
  for (std::size_t i = 0; i < notes.size(); ++i) {
    Note& note = notes[i];
    const NoteFields old = note;
    const std::uint64_t at = section.addr.value + descriptors[i];
    bool unknown = false;
    note.location = VirtAddr{patched(at, old.location.value, unknown)};
    note.base = VirtAddr{patched(at + word, old.base.value, unknown)};
    note.semaphore = VirtAddr{patched(at + 2 * std::uint64_t{word}, old.semaphore.value, unknown)};
    note.location_unresolved = unknown;
    if (note.location != old.location || note.base != old.base || note.semaphore != old.semaphore) {
      note.canonical = false;
    }
  }
}

}  // namespace reprobe
