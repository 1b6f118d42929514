#include "libprobe/elf/site_group.hpp"

#include "libprobe/elf/constants.hpp"

namespace reprobe {

SymbolGroup site_group(const SymbolTable& table) {
  SymbolGroup group;
  for (std::uint32_t i = 1; i < table.size(); ++i) {
    const Symbol symbol = table.at(i);
    const bool file = symbol.type == STT_FILE;
    const bool ends = file || symbol.binding != STB_LOCAL;
    if (group.begin != 0 && ends) break;
    if (file && group.begin == 0 && table.name(symbol) == kSiteGroup) group.begin = i;
    if (group.begin != 0) group.end = i + 1;
  }
  return group;
}

}  // namespace reprobe
