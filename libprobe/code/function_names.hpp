// The names of functions whose starts are known, and which symbols name code at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/code/functions.hpp"
#include "libprobe/code/symbol_cover.hpp"

namespace reprobe {

// The symbol as a place in code: functions, and labels of executable sections that are no mapping
// symbols ($x) and no compiler's own (.L1). Nothing for all others.
[[nodiscard]] std::optional<CodeSymbol> code_symbol(const ElfFile& file, const SymbolTable& table,
                                                    const Symbol& symbol);

// EM_ARM: true for $t, false for $a. Nothing for all other symbols.
[[nodiscard]] std::optional<bool> mapping_symbol(const ElfFile& file, const SymbolTable& table,
                                                 const Symbol& symbol);

struct FunctionName {
  bool found{};     // a symbol starts there
  bool function{};  // and it is a function
  bool thumb{};
  std::string text;
  std::uint32_t count{};  // Function::names_here
};

class FunctionNames {
 public:
  explicit FunctionNames(std::vector<CodeAddress> starts);

  // A symbol of .symtab (`full_table`) or .dynsym. The table must outlive finish().
  void add(const CodeSymbol& code, const Symbol& symbol, const SymbolTable& table, bool full_table);
  // Call once after the last add().
  void finish();

  // `start` is one of those given.
  [[nodiscard]] const FunctionName& at(const CodeAddress& start) const;

 private:
  struct Candidate {
    std::size_t start{};  // index in starts_
    bool function{};
    bool full_table{};
    std::uint8_t binding{};
    bool sized{};
    bool thumb{};
    std::string_view name;
  };

  void choose_names();
  void count_names();
  [[nodiscard]] static bool preferred(const Candidate& a, const Candidate& b);

  std::vector<CodeAddress> starts_;
  std::vector<Candidate> candidates_;
  std::vector<FunctionName> names_;
};

}  // namespace reprobe
