// Counters that code of other files can reach: through the dynamic symbol table.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/guards/counters.hpp"

namespace reprobe {

struct ExportedCounters {
  bool allowed{};      // other files are known not to check them
  bool with_others{};  // `referred` says what the other files of the set refer to
  std::set<std::string> referred{};
};

// The names of data in another file that it takes from, or defines besides, this one's: all dynamic
// symbols of a linked file, and the symbols that an object leaves open.
void add_referred_names(const ElfFile& other, std::set<std::string>& names);

// Gives counters that another file may check the reason, where they have none.
void refuse_exported(const ElfFile& file, const ExportedCounters& exported,
                     std::vector<GuardCounter>& counters);

}  // namespace reprobe
