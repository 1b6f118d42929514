// Operands in Intel syntax, which gcc -masm=intel and Rust's asm! write and no tracer reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reprobe {

// The same operand in AT&T syntax: "rdi" is "%rdi", "qword ptr [rsp + 16]" is "16(%rsp)". `size`:
// bytes of the argument, of either sign; a size in the operand has to agree with it. Nothing where
// the operand is not of Intel syntax, names a symbol or a segment, has no base register, or can be
// read in two ways (a bare number: a value to one assembler, an address to another).
[[nodiscard]] std::optional<std::string> intel_to_att(std::string_view operand, int size,
                                                      std::uint16_t machine);

}  // namespace reprobe
