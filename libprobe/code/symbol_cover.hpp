// Which symbol covers each of many addresses, found in one pass over a symbol table of any length
// and with any overlaps: O(log n) a symbol, memory by the number of addresses only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/code/functions.hpp"

namespace reprobe {

// A symbol that names code.
struct CodeSymbol {
  CodeAddress start;
  Size size;        // 0: it does not say
  bool function{};  // STT_FUNC or STT_GNU_IFUNC; false: a plain label
  bool thumb{};
};

// Section first, then address: the order in which addresses are searched.
[[nodiscard]] bool before(const CodeAddress& a, const CodeAddress& b);

class SymbolCover {
 public:
  // `addresses` sorted by before(), without duplicates.
  explicit SymbolCover(std::vector<CodeAddress> addresses);

  void add(const CodeSymbol& symbol);
  // A mapping symbol ($a, $t, $d of ELF for the Arm Architecture, 5.5.5).
  void add_mapping(CodeAddress start, bool thumb);
  // Call once after the last add() and before the questions below.
  void finish();

  [[nodiscard]] std::span<const CodeAddress> addresses() const { return addresses_; }
  [[nodiscard]] std::size_t index_of(const CodeAddress& address) const;

  // The symbol with a size that covers address `i`: functions before labels, then the last to
  // start, then the longest.
  [[nodiscard]] std::optional<CodeSymbol> covering(std::size_t i) const;
  // The last symbol of address i's section that starts at or before it, if none of that start has
  // a size.
  [[nodiscard]] std::optional<CodeSymbol> unsized_before(std::size_t i) const;
  // Start of the next symbol of address i's section after it.
  [[nodiscard]] std::optional<VirtAddr> next_start(std::size_t i) const;
  // What the last mapping symbol before address i says.
  [[nodiscard]] std::optional<bool> mapped_thumb(std::size_t i) const;

 private:
  struct Mapping {
    CodeAddress start;
    bool thumb{};
  };

  std::vector<CodeAddress> addresses_;
  // A segment tree over addresses_: leaf i is tree_[size + i], and a symbol stands in the O(log n)
  // nodes that make up the range it covers.
  std::vector<std::optional<CodeSymbol>> tree_;
  // Slot i: symbols that start after address i-1 and at or before address i.
  std::vector<std::optional<CodeSymbol>> last_;
  std::vector<std::optional<CodeAddress>> first_;
  std::vector<std::optional<Mapping>> mappings_;
};

}  // namespace reprobe
