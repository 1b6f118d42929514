// The symbol tables of a file with sleds: every symbol is what it was and follows its section, and
// what is new are the stubs' own names.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// Addresses that execution passes in the stubs, and the function of the original that it is in.
using PassedInStubs = std::map<VirtAddr, std::set<std::string, std::less<>>>;

// `old` is a SHT_SYMTAB section of `before` that stands in the same place in `after`: do its
// symbols say what they said, with those of a section that moved at its new place?
[[nodiscard]] bool same_symbols(const ElfFile& before, const ElfFile& after, const Section& old);

// A symbol table that has moved, with its old place, which the comparison of bytes leaves to this
// one. Rule verify-section: it holds other symbols than the old ones and one for each stub,
// FUNCTION.sled, or its names are others.
void compare_stub_symbols(const ElfFile& before, const ElfFile& after, const PassedInStubs& passed,
                          std::vector<Finding>& out);

}  // namespace reprobe
