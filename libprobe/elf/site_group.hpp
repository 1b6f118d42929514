// The symbols that `reprobe fix --symbols` wrote: the local symbols behind a symbol STT_FILE of one
// name. They name places inside of functions and are functions of no compiler, though their type
// says so.
#pragma once

#include <cstdint>
#include <string_view>

#include "libprobe/elf/symbols.hpp"

namespace reprobe {

// The STT_FILE symbol's name.
inline constexpr std::string_view kSiteGroup = "reprobe.sites";

// Indices in a symbol table, [begin, end); the STT_FILE symbol comes first.
struct SymbolGroup {
  std::uint32_t begin{};
  std::uint32_t end{};

  [[nodiscard]] bool empty() const { return begin == end; }
  [[nodiscard]] bool contains(std::uint32_t index) const { return index >= begin && index < end; }
};

// Of several groups the first; empty where there is none.
[[nodiscard]] SymbolGroup site_group(const SymbolTable& table);

}  // namespace reprobe
