#include "libprobe/elf/symbols.hpp"

#include "libprobe/elf/codec.hpp"
#include "libprobe/elf/constants.hpp"

namespace reprobe {

Symbol SymbolTable::at(std::uint32_t index) const {
  if (index >= size_) return {};
  const ByteView entry = entries_.subspan(static_cast<std::size_t>(index * stride_));
  Symbol symbol = with_codec(is64_, order_, [&](auto codec) { return codec.symbol(entry); });
  symbol.index = index;
  symbol.entry_offset = index * stride_;
  symbol.reserved_shndx = symbol.shndx >= SHN_LORESERVE;
  const std::size_t extended_at = std::size_t{index} * 4;
  if (symbol.shndx == SHN_XINDEX && extended_at + 4 <= extended_.size()) {
    symbol.shndx = static_cast<std::uint32_t>(load_uint(extended_, extended_at, 4, order_));
    symbol.reserved_shndx = false;
  }
  return symbol;
}

}  // namespace reprobe
