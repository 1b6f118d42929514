// What an operand of a probe's argument is, in its machine's assembler syntax.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/notes/arguments.hpp"

namespace reprobe {

struct Operand {
  Argument::Kind kind{Argument::Kind::other};
  std::vector<std::string> registers;  // in order of appearance, as in Argument
};

// `text` is the argument without "N@" and without blanks around it.
[[nodiscard]] Operand read_operand(std::string_view text, std::uint16_t machine);

// Is the name (without '%') a register of the machine, in the spellings that compilers print?
[[nodiscard]] bool is_register(std::string_view name, std::uint16_t machine);

}  // namespace reprobe
