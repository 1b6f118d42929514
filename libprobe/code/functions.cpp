#include "libprobe/code/functions.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "libprobe/code/eh_frame.hpp"
#include "libprobe/code/function_names.hpp"
#include "libprobe/code/symbol_cover.hpp"
#include "libprobe/elf/limits.hpp"
#include "libprobe/elf/site_group.hpp"

namespace reprobe {
namespace {

// What is known about the function of one address, before its name is looked up.
struct Range {
  CodeAddress start;
  Size size;
  bool size_guessed{};
  bool from_fde{};
  bool thumb{};
  bool may_have_landing_pads{};
};

Size size_until(VirtAddr start, VirtAddr end) { return {end.value - start.value}; }

// Never wraps: a size that passes the end of the address space is cut there.
Size clamped(VirtAddr start, Size size) {
  return {std::min(size.value, std::numeric_limits<std::uint64_t>::max() - start.value)};
}

// Where a symbol without size ends: at the next symbol or with its section.
std::optional<Size> size_of_unsized(const ElfFile& file, const SymbolCover& cover, std::size_t i,
                                    const CodeSymbol& symbol) {
  const CodeAddress& address = cover.addresses()[i];
  const bool relocatable = file.header().type == ET_REL;
  const Section* section =
      relocatable ? file.section_at(address.section) : file.section_containing(address.address);
  if (section == nullptr) return std::nullopt;
  const VirtAddr section_start{relocatable ? 0 : section->addr.value};
  const VirtAddr start = symbol.start.address;
  if (!in_range(start.value, section_start.value, section->size.value) ||
      !in_range(address.address.value, section_start.value, section->size.value))
    return std::nullopt;
  // The section's end may be 2^64.
  Size size{section->size.value - (start.value - section_start.value)};
  if (const auto next = cover.next_start(i)) size = std::min(size, size_until(start, *next));
  return size;
}

// Functions with a size first, then FDEs, then what only labels tell.
std::optional<Range> find_range(const ElfFile& file, const SymbolCover& cover,
                                const std::optional<UnwindTable>& unwind, std::size_t i) {
  const CodeAddress& address = cover.addresses()[i];
  std::optional<Fde> fde;
  if (unwind) fde = unwind->find(address.address);
  std::optional<CodeSymbol> symbol = cover.covering(i);
  Range range;
  range.may_have_landing_pads = !unwind || (fde && fde->has_lsda);
  if (fde && !(symbol && symbol->function)) {
    range.start = {fde->start, 0};
    range.size = clamped(fde->start, fde->size);
    range.from_fde = true;
    range.thumb = cover.mapped_thumb(i).value_or(false);
    return range;
  }
  if (symbol) {
    range.size = clamped(symbol->start.address, symbol->size);
  } else {
    symbol = cover.unsized_before(i);
    if (!symbol) return std::nullopt;
    const auto size = size_of_unsized(file, cover, i, *symbol);
    if (!size) return std::nullopt;
    range.size = *size;
    range.size_guessed = true;
  }
  range.start = symbol->start;
  range.from_fde = fde && fde->start == symbol->start.address;
  range.thumb = symbol->function ? symbol->thumb : cover.mapped_thumb(i).value_or(false);
  return range;
}

// Calls `add` with each symbol of the file's tables that may name code. Tables of a sane file do
// not overlap: all together are read as if they were no larger than the file.
template <typename F>
void for_each_symbol(const ElfFile& file, F&& add) {
  std::uint64_t left = file.source().size();
  for (const Section& section : file.sections()) {
    if (!section.holds_symbols()) continue;
    if (section.size.value > left) continue;
    left -= section.size.value;
    const auto table = file.symbol_table(section);
    if (!table) continue;
    const SymbolGroup sites = site_group(*table);
    for (std::uint32_t i = 1; i < table->size(); ++i) {
      const Symbol symbol = table->at(i);
      if (symbol.in_section() && !sites.contains(i)) add(section, *table, symbol);
    }
  }
}

SymbolCover cover_addresses(const ElfFile& file, std::span<const CodeAddress> asked) {
  const bool relocatable = file.header().type == ET_REL;
  std::vector<CodeAddress> sorted(asked.begin(), asked.end());
  if (!relocatable) {
    for (CodeAddress& address : sorted) address.section = 0;
  }
  std::ranges::sort(sorted, before);
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());

  SymbolCover cover(std::move(sorted));
  for_each_symbol(file, [&](const Section&, const SymbolTable& table, const Symbol& symbol) {
    if (const auto code = code_symbol(file, table, symbol)) {
      cover.add(*code);
    } else if (const auto thumb = mapping_symbol(file, table, symbol)) {
      cover.add_mapping({symbol.value, relocatable ? symbol.shndx : 0}, *thumb);
    }
  });
  cover.finish();
  return cover;
}

}  // namespace

FunctionLookup find_functions(const ElfFile& file, std::span<const CodeAddress> addresses) {
  FunctionLookup lookup;
  lookup.functions.resize(addresses.size());
  lookup.has_symtab = std::ranges::any_of(
      file.sections(), [](const Section& s) { return s.type == SHT_SYMTAB && !s.nobits(); });
  if (addresses.empty()) return lookup;
  const std::optional<UnwindTable> unwind = UnwindTable::open(file);
  // C compilers write no unwind information for ARM and RISC-V unless asked to.
  const std::uint16_t machine = file.header().machine;
  lookup.has_unwind = unwind && machine != EM_ARM && machine != EM_RISCV;

  const SymbolCover cover = cover_addresses(file, addresses);
  std::vector<std::optional<Range>> ranges;
  std::vector<CodeAddress> starts;
  for (std::size_t i = 0; i < cover.addresses().size(); ++i) {
    ranges.push_back(find_range(file, cover, unwind, i));
    if (ranges.back()) starts.push_back(ranges.back()->start);
  }
  FunctionNames names(std::move(starts));
  for_each_symbol(file,
                  [&](const Section& section, const SymbolTable& table, const Symbol& symbol) {
                    if (const auto code = code_symbol(file, table, symbol))
                      names.add(*code, symbol, table, section.type == SHT_SYMTAB);
                  });
  names.finish();

  const bool relocatable = file.header().type == ET_REL;
  TextBudget names_budget(file.source().size());
  for (std::size_t k = 0; k < addresses.size(); ++k) {
    CodeAddress address = addresses[k];
    if (!relocatable) address.section = 0;
    const auto& range = ranges[cover.index_of(address)];
    if (!range) continue;
    const FunctionName& name = names.at(range->start);
    Function function;
    function.start = range->start.address;
    function.size = range->size;
    function.size_guessed = range->size_guessed;
    function.name = names_budget.take(name.text);
    function.from_symbol = name.found;
    function.from_fde = range->from_fde;
    function.names_here = name.count;
    function.thumb = range->thumb;
    function.may_have_landing_pads = range->may_have_landing_pads;
    if (name.function) function.thumb = name.thumb;
    lookup.functions[k] = std::move(function);
  }
  return lookup;
}

}  // namespace reprobe
