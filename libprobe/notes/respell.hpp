// Arguments in a spelling that more tracers read, with the same meaning. Only x86, whose assembler
// syntax has several spellings of one operand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace reprobe {

// The arguments of a note of the given machine (EM_*), respelled:
// - hexadecimal numbers and sums (`0x10(%rbp)`, `8+16(%rsp)`) as one decimal number: libbpf and gdb
//   read decimal only;
// - `(%rax)` and `(%rax,%rdx,4)` with the offset 0: perf and early libbpf want one;
// - a missing size before a general register with the register's own: only gdb and SystemTap guess;
// - more blanks behind a dereference that an indexed operand follows: libbpf's "%15[^,]" would read
//   both as one (parse_usdt_arg).
// Pieces that it does not understand stay as they are, byte for byte. Doing it again changes
// nothing.
[[nodiscard]] std::string respell_arguments(std::string_view text, std::uint16_t machine);

}  // namespace reprobe
