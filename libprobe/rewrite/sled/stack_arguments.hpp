// Arguments that count from the stack pointer, where the note moves to a place at which the stack
// pointer differs: behind a call into the stub, or below a protected red zone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reprobe {

// The x86-64 arguments with `lower` added to every offset from %rsp; `lower`: bytes by which %rsp
// is lower at the note's new place, 0 .. 2^16. Nothing where an argument cannot be corrected: %rsp
// itself is the value, or its offset is not one decimal number.
[[nodiscard]] std::optional<std::string> correct_stack_arguments(std::string_view arguments,
                                                                 std::int64_t lower);

}  // namespace reprobe
