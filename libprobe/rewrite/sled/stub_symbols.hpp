// Symbols NAME.sled, so that debuggers and profilers name the stub after its function: copies of
// .symtab and .strtab with the stubs' symbols among the local ones. A symbol table cannot grow
// where it stands, and a file has but one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "libprobe/elf/file.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

struct StubSymbol {
  VirtAddr start;
  Size size;
  std::string_view function;  // its name; a stub of one without a name gets no symbol
};

class SymbolsWithStubs {
 public:
  // Nothing where the file has no such table (it is stripped), no stub has a name, or the table
  // cannot grow: something else refers to its entries or its names by their place, or they cannot
  // be read. `section`: the index of the stubs' section header. What `plan` changes in the old
  // table, which stays behind, is in the copy. `file` must outlive it.
  [[nodiscard]] static std::optional<SymbolsWithStubs> of(const ElfFile& file, const Plan& plan,
                                                          std::span<const StubSymbol> stubs,
                                                          std::uint32_t section);

  // Bytes of both tables.
  [[nodiscard]] Size size() const { return Size{symbols_.size() + names_.size()}; }

  // Errors: internal.
  [[nodiscard]] Result<void> append(Plan& plan, SectionTable& headers) const;

 private:
  SymbolsWithStubs(const ElfFile& file, const Section& table, const Section& names)
      : file_(&file), table_(&table), strings_(&names) {}
  [[nodiscard]] bool add(std::span<const StubSymbol> stubs, std::uint32_t section);

  const ElfFile* file_;
  const Section* table_;
  const Section* strings_;
  Bytes symbols_;
  Bytes names_;
  std::uint32_t added_{};
};

}  // namespace reprobe
