// Code for tests, written as objdump prints it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe::test {

// "1f2003d5" as bytes; blanks are skipped. `unit` is what objdump prints as one number on a
// little-endian machine: 4 turns "d503201f" into 1f 20 03 d5.
inline Bytes hex(std::string_view text, std::size_t unit = 1) {
  Bytes bytes;
  std::string digits;
  for (const char c : text) {
    if (c == ' ') continue;
    digits.push_back(c);
    if (digits.size() < 2) continue;
    bytes.push_back(static_cast<std::byte>(std::stoi(digits, nullptr, 16)));
    digits.clear();
  }
  for (std::size_t at = 0; at + unit <= bytes.size(); at += unit) {
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    std::reverse(first, first + static_cast<std::ptrdiff_t>(unit));
  }
  return bytes;
}

inline Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline ElfHeader header_of(std::uint16_t machine, bool is64 = true,
                           std::endian order = std::endian::little) {
  ElfHeader header;
  header.machine = machine;
  header.is64 = is64;
  header.order = order;
  return header;
}

}  // namespace reprobe::test
