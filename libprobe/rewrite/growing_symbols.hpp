// A symbol table that more symbols may be added to, in a copy: it cannot grow where it stands, and
// a file has but one.
#pragma once

#include <optional>

#include "libprobe/elf/file.hpp"

namespace reprobe {

struct GrowingSymbols {
  const Section* table;  // views into the file
  const Section* names;
};

// The file's only SHT_SYMTAB and its names. Nothing where the file has none (it is stripped), or
// it cannot grow: something else refers to its entries or its names by their place.
[[nodiscard]] std::optional<GrowingSymbols> growing_symbols(const ElfFile& file);

}  // namespace reprobe
