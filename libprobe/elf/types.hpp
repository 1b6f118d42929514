// The three kinds of number an ELF file is made of. They do not convert into each other: an
// address becomes an offset only through a PT_LOAD (ElfFile::offset_of).
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

namespace reprobe {

// Bytes; 0 .. 2^64-1.
struct Size {
  std::uint64_t value{};
  auto operator<=>(const Size&) const = default;
};

// Bytes from the start of the file.
struct FileOffset {
  std::uint64_t value{};
  auto operator<=>(const FileOffset&) const = default;
};

// An address as the file states it (before the load bias). In ET_REL: offset in its section.
struct VirtAddr {
  std::uint64_t value{};
  auto operator<=>(const VirtAddr&) const = default;
};

// a + b, or nothing where it wraps.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  if (a > std::numeric_limits<std::uint64_t>::max() - b) return std::nullopt;
  return a + b;
}

[[nodiscard]] constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) return std::nullopt;
  return a * b;
}

// Is `at` inside [start, start+size)? Never wraps.
[[nodiscard]] constexpr bool in_range(std::uint64_t at, std::uint64_t start, std::uint64_t size) {
  return at >= start && at - start < size;
}

// The value in a narrower type, or nothing where it does not fit. Every write goes through this.
template <typename To>
[[nodiscard]] constexpr std::optional<To> narrow(std::uint64_t value) {
  static_assert(std::is_unsigned_v<To>);
  if (value > std::numeric_limits<To>::max()) return std::nullopt;
  return static_cast<To>(value);
}

}  // namespace reprobe
