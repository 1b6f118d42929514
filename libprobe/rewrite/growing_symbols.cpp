#include "libprobe/rewrite/growing_symbols.hpp"

#include <algorithm>
#include <cstdint>

namespace reprobe {
namespace {

// Relocations that name no symbol do not mind where the symbols are.
bool names_symbols(const ElfFile& file, const Section& section) {
  if (!section.holds_relocations()) return true;
  const auto relocations = file.relocations(section);
  return !relocations || std::ranges::any_of(*relocations, [](const Relocation& relocation) {
    return relocation.symbol != 0;
  });
}

// The file's only SHT_SYMTAB, where nothing counts its entries but its own header.
const Section* growing_table(const ElfFile& file) {
  const std::uint64_t entry = file.header().is64 ? 24 : 16;  // Elf64_Sym, Elf32_Sym
  const Section* table = nullptr;
  for (const Section& section : file.sections()) {
    if (section.type != SHT_SYMTAB) continue;
    if (table != nullptr) return nullptr;
    table = &section;
  }
  if (table == nullptr || table->allocated() || !table->in_file) return nullptr;
  const std::uint64_t count = table->size.value / entry;
  if (table->entsize.value != entry || table->size.value % entry != 0 || table->info > count ||
      table->info == 0) {
    return nullptr;
  }
  for (const Section& section : file.sections()) {
    const bool refers = section.link == table->index && section.index != table->index;
    if (refers && names_symbols(file, section)) return nullptr;
  }
  return table;
}

// Its names, where they are its own.
const Section* growing_names(const ElfFile& file, const Section& table) {
  const Section* names = file.section_at(table.link);
  if (names == nullptr || names->type != SHT_STRTAB || names->allocated() || !names->in_file ||
      names->index == file.header().shstrndx) {
    return nullptr;
  }
  for (const Section& section : file.sections()) {
    if (section.link == names->index && section.index != table.index) return nullptr;
  }
  return names;
}

}  // namespace

std::optional<GrowingSymbols> growing_symbols(const ElfFile& file) {
  const Section* table = growing_table(file);
  const Section* names = table == nullptr ? nullptr : growing_names(file, *table);
  if (names == nullptr) return std::nullopt;
  return GrowingSymbols{table, names};
}

}  // namespace reprobe
