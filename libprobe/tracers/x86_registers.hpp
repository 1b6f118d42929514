// The names of the general registers of x86, as the consumers' tables list them.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace reprobe::consumers {

// rax, eax, ax, al, ..., r8 to r15 with d, w, b; rip and eip. Not ah, bh, ch, dh.
[[nodiscard]] inline bool is_x86_general(std::string_view name) {
  constexpr std::array<std::string_view, 34> kNames{
      "rip", "eip", "rax", "eax", "ax", "al",  "rbx", "ebx", "bx", "bl",  "rcx", "ecx",
      "cx",  "cl",  "rdx", "edx", "dx", "dl",  "rsi", "esi", "si", "sil", "rdi", "edi",
      "di",  "dil", "rbp", "ebp", "bp", "bpl", "rsp", "esp", "sp", "spl"};
  if (std::ranges::find(kNames, name) != kNames.end()) return true;
  if (!name.starts_with('r')) return false;
  name.remove_prefix(1);
  if (name.ends_with('d') || name.ends_with('w') || name.ends_with('b')) name.remove_suffix(1);
  constexpr std::array<std::string_view, 8> kNumbers{"8", "9", "10", "11", "12", "13", "14", "15"};
  return std::ranges::find(kNumbers, name) != kNumbers.end();
}

[[nodiscard]] inline bool is_x86_high_byte(std::string_view name) {
  return name == "ah" || name == "bh" || name == "ch" || name == "dh";
}

}  // namespace reprobe::consumers
