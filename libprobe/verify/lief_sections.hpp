// Sections and symbols, as LIEF sees them.
#pragma once

#include "libprobe/verify/lief_items.hpp"

namespace reprobe::second_reader {

// `changed`: names of the sections that may change, as in ExpectedChanges. `more_symbols`: .symtab
// may count more local ones.
void compare_sections(const lief::Binary& before, const lief::Binary& after, const NameSet& changed,
                      bool more_symbols, Differences& out);

// `stubs`: those of stubs may be new. `named`: those of these names may be in one file only.
void compare_symbols(const lief::Binary& before, const lief::Binary& after, const NameSet& changed,
                     bool stubs, const NameSet& named, Differences& out);

}  // namespace reprobe::second_reader
