// The argument grammar of stapsdt notes: blank-separated "N@operand", N a signed decimal size
// (negative: signed value) with an optional type suffix. Operands are assembler syntax and on
// aarch64 and arm may contain blanks ("-4@[sp, 8]").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reprobe {

struct Argument {
  // Bytes; negative for signed values; nothing where "N@" is missing.
  std::optional<int> size;
  std::string type;     // "s32", "u64", "f64", ...; "" where the size is missing
  std::string operand;  // as written: "%rax", "-20(%rbp)", "[sp, 8]"
  // What kind of operand it is, as far as the machine's grammar tells.
  enum class Kind { constant, registr, memory, other } kind{Kind::other};
  // Register names in the operand, in order, without '%'; of ppc64's bare number 9 as gdb names
  // it, "r9".
  std::vector<std::string> registers;
};

// The text of the first argument, "N@operand" as written; "" where there is none.
[[nodiscard]] std::string_view first_argument(std::string_view text, std::uint16_t machine);

// Splits the text of a note of the given machine (EM_*). Never fails; a piece that follows no
// rule becomes an Argument of kind `other`.
[[nodiscard]] std::vector<Argument> parse_arguments(std::string_view text, std::uint16_t machine);

}  // namespace reprobe
