#include "libprobe/rewrite/sled/stub_symbols.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/growing_symbols.hpp"

namespace reprobe {
namespace {

// Elf64_Sym: System V ABI chapter 4, "Symbol Table".
constexpr std::size_t kEntry = 24;
constexpr std::size_t kInfo = 4, kShndx = 6, kValue = 8, kSizeField = 16;

}  // namespace

std::optional<SymbolsWithStubs> SymbolsWithStubs::of(const ElfFile& file, const Plan& plan,
                                                     std::span<const StubSymbol> stubs,
                                                     std::uint32_t section) {
  if (!file.header().is64) return std::nullopt;
  const auto growing = growing_symbols(file);
  if (!growing) return std::nullopt;
  const auto [table, names] = *growing;
  const auto source = planned_source(file.source(), plan);
  const auto symbols = source->slice(table->offset, table->size, "the symbols");
  const auto strings = source->slice(names->offset, names->size, "the symbols' names");
  if (!symbols || !strings || strings->empty() || strings->back() != std::byte{0}) {
    return std::nullopt;
  }
  SymbolsWithStubs copy(file, *table, *names);
  copy.symbols_.assign(symbols->begin(), symbols->end());
  copy.names_.assign(strings->begin(), strings->end());
  if (!copy.add(stubs, section) || copy.added_ == 0) return std::nullopt;
  return copy;
}

bool SymbolsWithStubs::add(std::span<const StubSymbol> stubs, std::uint32_t section) {
  const std::endian order = file_->header().order;
  std::map<std::string_view, std::uint64_t> names;  // of functions, where their stubs' stand
  Bytes added;
  for (const StubSymbol& stub : stubs) {
    if (stub.function.empty()) continue;
    const auto [name, is_new] = names.emplace(stub.function, names_.size());
    if (is_new) {
      for (const std::string_view text : {stub.function, kStubSuffix}) {
        const ByteView bytes = as_bytes(text);
        names_.insert(names_.end(), bytes.begin(), bytes.end());
      }
      names_.push_back(std::byte{0});
    }
    const std::size_t at = added.size();
    added.resize(at + kEntry);
    store_uint(added, at, 4, order, name->second);
    store_uint(added, at + kInfo, 1, order, (STB_LOCAL << 4) | STT_FUNC);
    store_uint(added, at + kShndx, 2, order, section);
    store_uint(added, at + kValue, 8, order, stub.start.value);
    store_uint(added, at + kSizeField, 8, order, stub.size.value);
    ++added_;
  }
  const auto globals = static_cast<std::ptrdiff_t>(std::size_t{table_->info} * kEntry);
  symbols_.insert(symbols_.begin() + globals, added.begin(), added.end());
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return names_.size() <= kMost && symbols_.size() / kEntry <= kMost;
}

Result<void> SymbolsWithStubs::append(Plan& plan, SectionTable& headers) const {
  const std::string why = "the symbols with those of the stubs";
  const auto symbols = plan.append(file_->source(), symbols_, Size{8}, why);
  if (!symbols) return tl::unexpected(symbols.error());
  const auto names = plan.append(file_->source(), names_, Size{1}, "the names of " + why);
  if (!names) return tl::unexpected(names.error());
  for (auto done : {headers.set(*table_, SectionField::offset, symbols->value, why),
                    headers.set(*table_, SectionField::size, symbols_.size(), why),
                    headers.set(*table_, SectionField::info, table_->info + added_, why),
                    headers.set(*strings_, SectionField::offset, names->value, why),
                    headers.set(*strings_, SectionField::size, names_.size(), why)}) {
    if (!done) return done;
  }
  return {};
}

}  // namespace reprobe
