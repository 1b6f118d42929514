// Symbols and symbol tables, read in place: a table of a million entries is not copied to find
// the few that matter.
// Format: System V ABI, chapter 4, "Symbol Table" and SHT_SYMTAB_SHNDX.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/strings.hpp"
#include "libprobe/elf/types.hpp"

namespace reprobe {

struct Symbol {
  std::uint32_t index{};
  std::string_view name;  // view into the file; SymbolTable::at() leaves it empty
  VirtAddr value;
  Size size;
  std::uint8_t type{};     // STT_*
  std::uint8_t binding{};  // STB_*
  std::uint8_t other{};
  std::uint32_t shndx{};  // resolved through SHT_SYMTAB_SHNDX; SHN_UNDEF, SHN_ABS, ... kept
  // `shndx` is SHN_ABS, SHN_COMMON or another reserved value and not a section's index. In a file
  // with more than 0xff00 sections the numbers alone do not tell.
  bool reserved_shndx{};
  std::uint32_t name_offset{};   // st_name
  std::uint64_t entry_offset{};  // of the entry in its table

  [[nodiscard]] bool in_section() const { return shndx != 0 && !reserved_shndx; }
};

// Made by ElfFile::symbol_table(). Views live as long as the file's source.
class SymbolTable {
 public:
  // Entries, the null entry at 0 included.
  [[nodiscard]] std::uint32_t size() const { return size_; }

  // The entry without its name; touches nothing else. An index outside the table, as a relocation
  // may state it, gives the null symbol (STN_UNDEF).
  [[nodiscard]] Symbol at(std::uint32_t index) const;

  // Empty where it lies outside the string table.
  [[nodiscard]] std::string_view name(const Symbol& symbol) const {
    return strings_.at(symbol.name_offset).value_or(std::string_view{});
  }

 private:
  friend class ElfFile;

  ByteView entries_;
  StringTable strings_;
  ByteView extended_;  // of SHT_SYMTAB_SHNDX: one 32-bit section index an entry; may be shorter
  std::uint64_t stride_{};
  std::uint32_t size_{};
  bool is64_{};
  std::endian order_{std::endian::little};
};

}  // namespace reprobe
