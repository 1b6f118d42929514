#include "libprobe/code/function_names.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace reprobe {
namespace {

// Longer names are told apart by where they stand, and cut in the result: a file can state
// millions of symbols whose names are all the rest of one huge string.
constexpr std::size_t kLongestName = 4096;

// Of two names the shorter comes first, then the alphabet decides.
std::strong_ordering compare_names(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return a.size() <=> b.size();
  if (a.data() == b.data()) return std::strong_ordering::equal;
  const int order = a.substr(0, kLongestName).compare(b.substr(0, kLongestName));
  if (order != 0) return order <=> 0;
  if (a.size() <= kLongestName) return std::strong_ordering::equal;
  return std::less<>{}(a.data(), b.data()) ? std::strong_ordering::less
                                           : std::strong_ordering::greater;
}

// GNU ld puts the version into .symtab's names: "memcpy@@GLIBC_2.14". It is no other function.
std::string_view without_version(std::string_view name) {
  const std::size_t at = name.substr(0, kLongestName).find('@');
  return at == std::string_view::npos || at == 0 ? name : name.substr(0, at);
}

bool is_function(const Symbol& symbol) {
  return symbol.type == STT_FUNC || symbol.type == STT_GNU_IFUNC;
}

// Global before weak before local: the name that other modules know comes first.
unsigned binding_rank(std::uint8_t binding) {
  switch (binding) {
    case STB_LOCAL:
      return 2;
    case STB_WEAK:
      return 1;
    default:  // STB_GLOBAL, STB_GNU_UNIQUE
      return 0;
  }
}

}  // namespace

std::optional<CodeSymbol> code_symbol(const ElfFile& file, const SymbolTable& table,
                                      const Symbol& symbol) {
  if (!symbol.in_section()) return std::nullopt;
  const bool relocatable = file.header().type == ET_REL;
  CodeSymbol code{{symbol.value, relocatable ? symbol.shndx : 0}, symbol.size, false, false};
  if (is_function(symbol)) {
    code.function = true;
    if (file.header().machine == EM_ARM) {
      // ELF for the Arm Architecture, 5.5.3: bit 0 of a function's value says Thumb.
      code.thumb = (symbol.value.value & 1) != 0;
      code.start.address.value &= ~std::uint64_t{1};
    }
    return code;
  }
  if (symbol.type != STT_NOTYPE) return std::nullopt;
  const Section* section = file.section_at(symbol.shndx);
  if (section == nullptr || !section->executable()) return std::nullopt;
  const std::uint64_t section_start = relocatable ? 0 : section->addr.value;
  if (!in_range(symbol.value.value, section_start, section->size.value)) return std::nullopt;
  // ".L" labels, annobin's ".annobin_", and mapping symbols of ARM, AArch64 and RISC-V.
  const std::string_view name = table.name(symbol);
  if (name.empty() || name.front() == '.' || name.front() == '$') return std::nullopt;
  return code;
}

std::optional<bool> mapping_symbol(const ElfFile& file, const SymbolTable& table,
                                   const Symbol& symbol) {
  if (file.header().machine != EM_ARM || symbol.type != STT_NOTYPE) return std::nullopt;
  const std::string_view name = table.name(symbol);
  if (name.size() < 2 || name[0] != '$' || (name.size() > 2 && name[2] != '.')) return std::nullopt;
  if (name[1] == 't') return true;
  if (name[1] == 'a') return false;
  return std::nullopt;
}

FunctionNames::FunctionNames(std::vector<CodeAddress> starts) : starts_(std::move(starts)) {
  std::ranges::sort(starts_, before);
  starts_.erase(std::unique(starts_.begin(), starts_.end()), starts_.end());
  names_.resize(starts_.size());
}

void FunctionNames::add(const CodeSymbol& code, const Symbol& symbol, const SymbolTable& table,
                        bool full_table) {
  const auto place = std::ranges::lower_bound(starts_, code.start, before);
  if (place == starts_.end() || *place != code.start) return;
  const auto start = static_cast<std::size_t>(std::distance(starts_.begin(), place));
  const std::string_view name = without_version(table.name(symbol));
  if (name.empty()) return;
  candidates_.push_back(
      {start, code.function, full_table, symbol.binding, code.size.value != 0, code.thumb, name});
}

bool FunctionNames::preferred(const Candidate& a, const Candidate& b) {
  const auto rank = [](const Candidate& c) {
    return std::tuple(c.start, !c.function, binding_rank(c.binding), !c.sized);
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  return compare_names(a.name, b.name) < 0;
}

void FunctionNames::finish() {
  choose_names();
  count_names();
}

void FunctionNames::choose_names() {
  std::ranges::sort(candidates_, &FunctionNames::preferred);
  for (const Candidate& candidate : candidates_) {
    FunctionName& name = names_[candidate.start];
    if (name.found) continue;
    name.found = true;
    name.function = candidate.function;
    name.thumb = candidate.thumb;
    name.text = candidate.name.substr(0, kLongestName);
    if (candidate.name.size() > kLongestName) name.text += "...";
  }
}

// In .symtab, or where it has none of this start, in .dynsym.
void FunctionNames::count_names() {
  const auto by_name = [](const Candidate& a, const Candidate& b) {
    const auto key = [](const Candidate& c) {
      return std::tuple(c.start, !c.function, !c.full_table);
    };
    if (key(a) != key(b)) return key(a) < key(b);
    return compare_names(a.name, b.name) < 0;
  };
  std::ranges::sort(candidates_, by_name);
  for (auto group = candidates_.begin(); group != candidates_.end();) {
    const auto end = std::find_if(group, candidates_.end(), [&](const Candidate& c) {
      return c.start != group->start || c.function != group->function ||
             c.full_table != group->full_table;
    });
    FunctionName& name = names_[group->start];
    if (group->function && name.count == 0) {
      name.count = 1;
      for (auto next = std::next(group); next != end; ++next) {
        if (compare_names(std::prev(next)->name, next->name) != 0) ++name.count;
      }
    }
    group = end;
  }
}

const FunctionName& FunctionNames::at(const CodeAddress& start) const {
  const auto place = std::ranges::lower_bound(starts_, start, before);
  return names_[static_cast<std::size_t>(std::distance(starts_.begin(), place))];
}

}  // namespace reprobe
