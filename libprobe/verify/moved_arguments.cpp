#include "libprobe/verify/moved_arguments.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/arguments.hpp"

namespace reprobe {
namespace {

bool is_stack_pointer(std::string_view name) {
  return name == "rsp" || name == "esp" || name == "sp" || name == "spl";
}

// What stands before the bracket of "8(%rsp)", as a number; "" is 0.
std::optional<std::int64_t> stack_distance(std::string_view operand) {
  const std::string_view text = operand.substr(0, operand.find('('));
  std::int64_t value = 0;
  if (text.empty()) return value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // What an address can hold.
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && value >= INT32_MIN && value <= INT32_MAX ? std::optional(value) : std::nullopt;
}

bool same_operand(const Argument& a, const Argument& b, std::int64_t lower) {
  if (a.size != b.size || a.type != b.type) return false;
  const auto uses = std::ranges::count_if(a.registers, is_stack_pointer);
  if (uses == 0) return a.operand == b.operand;
  // %rsp itself would be another value; it is the base, and cannot be the index too.
  const std::size_t bracket = a.operand.find("(%rsp"), other = b.operand.find('(');
  if (uses != 1 || a.kind != Argument::Kind::memory || bracket == std::string::npos ||
      other == std::string::npos || a.operand.substr(bracket) != b.operand.substr(other)) {
    return false;
  }
  const auto from = stack_distance(a.operand), to = stack_distance(b.operand);
  return from && to && *to == *from + lower;
}

}  // namespace

bool same_arguments(std::string_view before, std::string_view after, std::int64_t lower) {
  if (lower == 0) return before == after;
  const auto a = parse_arguments(before, EM_X86_64), b = parse_arguments(after, EM_X86_64);
  return std::ranges::equal(
      a, b, [&](const Argument& x, const Argument& y) { return same_operand(x, y, lower); });
}

}  // namespace reprobe
