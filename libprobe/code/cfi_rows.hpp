// Runs call frame instructions: the table of rules that holds at each address of a function.
// Format: DWARF 4, 6.4.1 (the table), 6.4.2 (the instructions); LSB Core 5.0, 10.5.2 (GNU's).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "libprobe/code/cfi.hpp"

namespace reprobe {

// How the value that a register had in the caller is found.
struct RegisterRule {
  enum class Kind {
    undefined,       // it is lost
    same_value,      // it still holds it
    offset,          // it is stored at CFA + value
    val_offset,      // it is CFA + value
    in_register,     // it is in register `value`
    expression,      // it is stored at the address that `expression` gives
    val_expression,  // it is what `expression` gives
  };
  Kind kind{};
  std::int64_t value{};
  ByteView expression{};
};
[[nodiscard]] bool operator==(const RegisterRule& a, const RegisterRule& b);

// The canonical frame address: register + offset, or an expression.
struct CfaRule {
  std::uint64_t reg{};
  std::int64_t offset{};
  bool is_expression{};
  ByteView expression{};
};
[[nodiscard]] bool operator==(const CfaRule& a, const CfaRule& b);

struct CfiRow {
  CfaRule cfa;
  std::map<std::uint64_t, RegisterRule> registers;  // those that have a rule
  std::uint64_t args_size{};                        // DW_CFA_GNU_args_size
  bool return_signed{};                             // DW_CFA_AARCH64_negate_ra_state
  bool operator==(const CfiRow&) const = default;
};

// The row that holds from `start` to the next one's start or the function's end.
struct PlacedRow {
  VirtAddr start;
  CfiRow row;
};

struct CfiRows {
  CfiRow initial;               // what the CIE sets
  std::vector<PlacedRow> rows;  // ascending; the first starts with the function
  std::size_t rules{};          // in all of them: what reading them took

  // The row at an address of the function.
  [[nodiscard]] const CfiRow& at(VirtAddr address) const;
};

// Error: refused (an instruction we do not know, a malformed program, more than any compiler
// writes: 65,536 rules in all rows together).
[[nodiscard]] Result<CfiRows> read_rows(const ElfFile& file, const CfiCie& cie, const CfiFde& fde);

}  // namespace reprobe
