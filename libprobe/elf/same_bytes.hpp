// Comparing much: std::equal() and std::mismatch() take std::byte one by one, memcmp(3) does not.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {

[[nodiscard]] inline bool same_bytes(ByteView a, ByteView b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Where two views of one size differ first.
[[nodiscard]] inline std::optional<std::size_t> first_mismatch(ByteView a, ByteView b) {
  if (same_bytes(a, b)) return std::nullopt;
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace reprobe
