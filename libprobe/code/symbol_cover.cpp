#include "libprobe/code/symbol_cover.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

namespace reprobe {
namespace {

bool better_cover(const CodeSymbol& a, const CodeSymbol& b) {
  return std::tuple(a.function, a.start.address, a.size) >
         std::tuple(b.function, b.start.address, b.size);
}

void offer(std::optional<CodeSymbol>& place, const CodeSymbol& symbol) {
  if (!place || better_cover(symbol, *place)) place = symbol;
}

// Of two symbols before an address: the nearer; at one start the one with a size, so that a
// function whose end is known is not stretched by an alias without size.
bool nearer(const CodeSymbol& a, const CodeSymbol& b) {
  if (a.start != b.start) return before(b.start, a.start);
  return std::tuple(a.size, a.function) > std::tuple(b.size, b.function);
}

}  // namespace

bool before(const CodeAddress& a, const CodeAddress& b) {
  return std::tuple(a.section, a.address) < std::tuple(b.section, b.address);
}

SymbolCover::SymbolCover(std::vector<CodeAddress> addresses)
    : addresses_(std::move(addresses)),
      tree_(2 * addresses_.size()),
      last_(addresses_.size()),
      first_(addresses_.size() + 1),
      mappings_(addresses_.size()) {}

std::size_t SymbolCover::index_of(const CodeAddress& address) const {
  const auto place = std::ranges::lower_bound(addresses_, address, before);
  return static_cast<std::size_t>(std::distance(addresses_.begin(), place));
}

void SymbolCover::add(const CodeSymbol& symbol) {
  const std::size_t slot = index_of(symbol.start);
  std::optional<CodeAddress>& first = first_[slot];
  if (!first || before(symbol.start, *first)) first = symbol.start;
  if (slot == addresses_.size()) return;
  if (!last_[slot] || nearer(symbol, *last_[slot])) last_[slot] = symbol;
  if (symbol.size.value == 0) return;

  // The range of addresses that it covers, [slot, end).
  const std::uint64_t last_byte = checked_add(symbol.start.address.value, symbol.size.value - 1)
                                      .value_or(std::numeric_limits<std::uint64_t>::max());
  const CodeAddress last{VirtAddr{last_byte}, symbol.start.section};
  const auto after = std::ranges::upper_bound(addresses_, last, before);
  const auto end = static_cast<std::size_t>(std::distance(addresses_.begin(), after));
  std::size_t left = slot + addresses_.size();
  std::size_t right = end + addresses_.size();
  for (; left < right; left /= 2, right /= 2) {
    if (left % 2 == 1) offer(tree_[left++], symbol);
    if (right % 2 == 1) offer(tree_[--right], symbol);
  }
}

void SymbolCover::add_mapping(CodeAddress start, bool thumb) {
  const std::size_t slot = index_of(start);
  if (slot == addresses_.size()) return;
  std::optional<Mapping>& mapping = mappings_[slot];
  if (!mapping || !before(start, mapping->start)) mapping = Mapping{start, thumb};
}

void SymbolCover::finish() {
  for (std::size_t i = 1; i < addresses_.size(); ++i) {
    if (!last_[i]) last_[i] = last_[i - 1];
    if (!mappings_[i]) mappings_[i] = mappings_[i - 1];
  }
  for (std::size_t i = addresses_.size(); i-- > 0;) {
    if (!first_[i]) first_[i] = first_[i + 1];
  }
}

std::optional<CodeSymbol> SymbolCover::covering(std::size_t i) const {
  std::optional<CodeSymbol> best;
  for (std::size_t node = i + addresses_.size(); node > 0; node /= 2) {
    if (tree_[node]) offer(best, *tree_[node]);
  }
  return best;
}

std::optional<CodeSymbol> SymbolCover::unsized_before(std::size_t i) const {
  const std::optional<CodeSymbol>& last = last_[i];
  if (!last || last->size.value != 0 || last->start.section != addresses_[i].section)
    return std::nullopt;
  return last;
}

std::optional<VirtAddr> SymbolCover::next_start(std::size_t i) const {
  const std::optional<CodeAddress>& next = first_[i + 1];
  if (!next || next->section != addresses_[i].section) return std::nullopt;
  return next->address;
}

std::optional<bool> SymbolCover::mapped_thumb(std::size_t i) const {
  const std::optional<Mapping>& mapping = mappings_[i];
  if (!mapping || mapping->start.section != addresses_[i].section) return std::nullopt;
  return mapping->thumb;
}

}  // namespace reprobe
