// Steps of sscanf(3) and strtol(3), which the consumers' parsers are made of.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace reprobe::consumers {

[[nodiscard]] constexpr bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');  // isspace() of the C locale
}
[[nodiscard]] constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
[[nodiscard]] constexpr bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
[[nodiscard]] constexpr bool is_letter(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z'); }

// 1, 2, 4 or 8 bytes, signed (negative) or not: the sizes of arguments in registers. Any long may
// come, also the lowest, which has no positive counterpart.
[[nodiscard]] constexpr bool is_usual_size(long size) {
  if (size < -8 || size > 8) return false;
  const long bytes = size < 0 ? -size : size;
  return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

// Reads from the front of a text. A step that does not fit leaves the text as it is.
class TextScan {
 public:
  explicit TextScan(std::string_view text) : text_(text) {}

  [[nodiscard]] std::string_view rest() const { return text_; }
  [[nodiscard]] bool done() const { return text_.empty(); }
  [[nodiscard]] char peek() const { return text_.empty() ? '\0' : text_.front(); }

  void blanks() {
    while (!text_.empty() && is_blank(text_.front())) text_.remove_prefix(1);
  }
  bool literal(char c) {
    if (peek() != c || text_.empty()) return false;
    text_.remove_prefix(1);
    return true;
  }
  // scanf's blank in a format matches any number of blanks.
  bool blank_literal(char c) {
    blanks();
    return literal(c);
  }
  // %ld and strtol(base 10): blanks, a sign, digits.
  std::optional<long> number() { return integer(10); }
  // %d: glibc's scanf(3) reads a long and keeps its low 32 bits.
  std::optional<int> int_number() {
    const auto value = integer(10);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  }
  // strtol(base 0): 0x and octal too.
  std::optional<long> any_number() { return integer(0); }
  // %15[...]: one to fifteen characters for which `fits` holds.
  template <typename Fits>
  std::optional<std::string_view> run(Fits fits, std::size_t most = 15) {
    std::size_t length = 0;
    while (length < text_.size() && length < most && fits(text_[length])) ++length;
    if (length == 0) return std::nullopt;
    const std::string_view found = text_.substr(0, length);
    text_.remove_prefix(length);
    return found;
  }

 private:
  std::optional<long> integer(int base) {
    std::string_view rest = text_;
    while (!rest.empty() && is_blank(rest.front())) rest.remove_prefix(1);
    const bool minus = rest.starts_with('-');
    if (minus || rest.starts_with('+')) rest.remove_prefix(1);
    if (base == 0) {
      const bool hex = rest.size() > 2 && rest[0] == '0' && (rest[1] == 'x' || rest[1] == 'X') &&
                       (is_digit(rest[2]) || (rest[2] >= 'a' && rest[2] <= 'f') ||
                        (rest[2] >= 'A' && rest[2] <= 'F'));
      base = hex ? 16 : rest.starts_with('0') ? 8 : 10;
      if (hex) rest.remove_prefix(2);
    }
    unsigned long value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value, base);
    if (error == std::errc::invalid_argument) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    // strtol(3): what does not fit is the nearest that does.
    constexpr unsigned long kMost = std::numeric_limits<long>::max();
    if (error != std::errc{}) value = std::numeric_limits<unsigned long>::max();
    if (minus) return value > kMost ? std::numeric_limits<long>::min() : -static_cast<long>(value);
    return static_cast<long>(std::min(value, kMost));
  }

  std::string_view text_;
};

}  // namespace reprobe::consumers
