// The symbols that follow a section: to another number (st_shndx) or another address (st_value).
// Only tables that are not loaded are rewritten.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"

namespace reprobe {

// Does a symbol of a loaded table (.dynsym) belong to the section? Also where such a table cannot
// be read.
[[nodiscard]] bool names_loaded_symbol(const ElfFile& file, std::uint32_t section);

// Can the symbols that are not loaded be rewritten? Error refused: a table cannot be read, or
// something else claims its bytes.
[[nodiscard]] Result<void> check_symbols(const ElfFile& file);

// Gives the symbols of each section the number that `numbers` has for it. Errors: as
// check_symbols(); internal.
[[nodiscard]] Result<void> renumber_symbols(Plan& plan, const ElfFile& file,
                                            const std::map<std::uint32_t, std::uint32_t>& numbers,
                                            const std::string& why);

// Moves the symbols of the section to `address`, its new start, and makes them as empty as it
// becomes. Errors: as check_symbols(); refused (one does not stand at the start); internal.
[[nodiscard]] Result<void> move_symbols(Plan& plan, const ElfFile& file, const Section& section,
                                        VirtAddr address, const std::string& why);

}  // namespace reprobe
