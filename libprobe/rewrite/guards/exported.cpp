#include "libprobe/rewrite/guards/exported.hpp"

#include <algorithm>
#include <functional>

#include "libprobe/rewrite/guards/counter_scan.hpp"

namespace reprobe {
namespace {

void for_each_symbol(const ElfFile& file, std::uint32_t type,
                     const std::function<void(const Symbol&, std::string_view)>& f) {
  // Tables of a sane file do not overlap.
  std::uint64_t left = file.source().size();
  for (const Section& section : file.sections()) {
    if (section.type != type || section.size.value > left) continue;
    left -= section.size.value;
    const auto symbols = file.symbol_table(section);
    if (!symbols) continue;
    for (std::uint32_t i = 1; i < symbols->size(); ++i) {
      const Symbol symbol = symbols->at(i);
      f(symbol, symbols->name(symbol));
    }
  }
}

}  // namespace

void add_referred_names(const ElfFile& other, std::set<std::string>& names) {
  const bool object = other.header().type == ET_REL;
  for_each_symbol(other, object ? SHT_SYMTAB : SHT_DYNSYM,
                  [&](const Symbol& symbol, std::string_view name) {
                    if (symbol.binding != STB_LOCAL) names.emplace(name);
                  });
}

// A protected symbol is what this file's own code uses; others reach it all the same. Hidden and
// internal ones are not in the table, or local there.
void refuse_exported(const ElfFile& file, const ExportedCounters& exported,
                     std::vector<GuardCounter>& counters) {
  if (exported.allowed || counters.empty()) return;
  for_each_symbol(file, SHT_DYNSYM, [&](const Symbol& symbol, std::string_view name) {
    if (symbol.binding == STB_LOCAL || !symbol.in_section() || symbol.type == STT_FUNC) return;
    // An array of counters at most: a damaged size must not cover all of them for every symbol.
    constexpr std::uint64_t kMostBytes = 256;
    const std::uint64_t size = std::clamp(symbol.size.value, kCounterSize, kMostBytes);
    const auto first = std::ranges::lower_bound(counters, symbol.value, {}, &GuardCounter::address);
    for (auto it = first; it != counters.end() && it->address.value - symbol.value.value < size;
         ++it) {
      if (!it->reason.empty()) continue;
      if (!exported.with_others) {
        it->reason = "the counter is exported: other files may check it";
      } else if (exported.referred.contains(std::string(name))) {
        it->reason = "another file refers to the counter";
      }
    }
  });
}

}  // namespace reprobe
