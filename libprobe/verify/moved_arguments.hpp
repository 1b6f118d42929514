// Do a note's arguments say at its new place what they said at the old one?
#pragma once

#include <cstdint>
#include <string_view>

namespace reprobe {

// `lower`: bytes by which %rsp is lower at the new place. Each operand is the same, and one that
// counts from %rsp counts as many bytes more. x86-64.
[[nodiscard]] bool same_arguments(std::string_view before, std::string_view after,
                                  std::int64_t lower);

}  // namespace reprobe
