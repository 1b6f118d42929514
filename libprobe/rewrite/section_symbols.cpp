#include "libprobe/rewrite/section_symbols.hpp"

#include <vector>

#include "libprobe/elf/file_ranges.hpp"

namespace reprobe {
namespace {

struct SymbolField {
  std::uint64_t offset;
  unsigned width;
};

// Elf32_Sym and Elf64_Sym: System V ABI chapter 4, "Symbol Table".
SymbolField value_field(bool is64) { return is64 ? SymbolField{8, 8} : SymbolField{4, 4}; }
SymbolField size_field(bool is64) { return is64 ? SymbolField{16, 8} : SymbolField{8, 4}; }
SymbolField shndx_field(bool is64) { return is64 ? SymbolField{6, 2} : SymbolField{14, 2}; }

tl::unexpected<Error> refused(const Section& section, std::string why) {
  return fail(ErrorCode::refused, section.name, std::move(why));
}

struct Change {
  SymbolField field;
  std::uint64_t value;
};

// Makes the changes that `changes_of` wants for each symbol of a table that is not loaded.
template <typename ChangesOf>
Result<void> change_symbols(Plan& plan, const ElfFile& file, const std::string& why,
                            ChangesOf changes_of) {
  if (auto done = check_symbols(file); !done) return done;
  for (const Section& section : file.sections()) {
    if (!section.holds_symbols() || section.allocated()) continue;
    const auto table = file.symbol_table(section);
    if (!table) return tl::unexpected(table.error());
    for (std::uint32_t i = 1; i < table->size(); ++i) {
      const Symbol symbol = table->at(i);
      for (const auto& [field, value] : changes_of(symbol)) {
        if (field.width < 8 && value >> (8 * field.width) != 0) {
          return refused(section, "a number does not fit the symbol");
        }
        Bytes bytes(field.width);
        store_uint(bytes, 0, field.width, file.header().order, value);
        const FileOffset at{section.offset.value + symbol.entry_offset + field.offset};
        auto done = plan.replace(file.source(), at, std::move(bytes), why);
        if (!done) return done;
      }
    }
  }
  return {};
}

}  // namespace

bool names_loaded_symbol(const ElfFile& file, std::uint32_t section) {
  for (const Section& table : file.sections()) {
    if (!table.holds_symbols() || !table.allocated()) continue;
    const auto symbols = file.symbol_table(table);
    if (!symbols) return true;
    for (std::uint32_t i = 1; i < symbols->size(); ++i) {
      const Symbol symbol = symbols->at(i);
      if (symbol.in_section() && symbol.shndx == section) return true;
    }
  }
  return false;
}

Result<void> check_symbols(const ElfFile& file) {
  const FileRanges ranges(file);
  for (const Section& section : file.sections()) {
    if (!section.holds_symbols() || section.allocated()) continue;
    if (!file.symbol_table(section)) return refused(section, "the symbols cannot be read");
    if (const auto sharer = ranges.sharer(section)) {
      return refused(section, "the symbols overlap " + *sharer);
    }
  }
  return {};
}

Result<void> renumber_symbols(Plan& plan, const ElfFile& file,
                              const std::map<std::uint32_t, std::uint32_t>& numbers,
                              const std::string& why) {
  const bool is64 = file.header().is64;
  return change_symbols(plan, file, why, [&](const Symbol& symbol) -> std::vector<Change> {
    const auto number = symbol.in_section() ? numbers.find(symbol.shndx) : numbers.end();
    if (number == numbers.end()) return {};
    return {{shndx_field(is64), number->second}};
  });
}

Result<void> move_symbols(Plan& plan, const ElfFile& file, const Section& section, VirtAddr address,
                          const std::string& why) {
  const bool is64 = file.header().is64;
  const auto belongs = [&](const Symbol& symbol) {
    return symbol.in_section() && symbol.shndx == section.index;
  };
  bool at_start = true;
  const auto check = [&](const Symbol& symbol) -> std::vector<Change> {
    if (belongs(symbol)) {
      at_start = at_start && symbol.value == section.addr && symbol.size <= section.size;
    }
    return {};
  };
  if (auto done = change_symbols(plan, file, why, check); !done) return done;
  if (!at_start) return refused(section, "a symbol does not stand at its start");
  return change_symbols(plan, file, why, [&](const Symbol& symbol) -> std::vector<Change> {
    if (!belongs(symbol)) return {};
    return {{value_field(is64), address.value}, {size_field(is64), 0}};
  });
}

}  // namespace reprobe
