#include "libprobe/rewrite/sled/stack_arguments.hpp"

#include <charconv>

namespace reprobe {
namespace {

// A register name ends where the next character cannot be part of one: %rsp, not %rspx.
bool names_stack_pointer(std::string_view operand) {
  for (const std::string_view name : {"%rsp", "%esp", "%sp", "%spl"}) {
    for (std::size_t at = operand.find(name); at != std::string_view::npos;
         at = operand.find(name, at + 1)) {
      const std::size_t end = at + name.size();
      const bool whole = end == operand.size() || operand[end] == ')' || operand[end] == ',';
      if (whole) return true;
    }
  }
  return false;
}

// "8@", "-4@24": what stands before "(%rsp", with the offset grown.
std::optional<std::string> grow_offset(std::string_view before, std::int64_t lower) {
  const std::size_t at = before.rfind('@');
  const std::size_t digits = at == std::string_view::npos ? 0 : at + 1;
  const std::string_view text = before.substr(digits);
  std::int64_t offset = 0;
  if (!text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), offset);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  }
  // What an instruction can hold, so that the sum does not overflow either.
  if (offset < INT32_MIN || offset > INT32_MAX - lower) return std::nullopt;
  return std::string(before.substr(0, digits)) + std::to_string(offset + lower);
}

std::optional<std::string> correct_argument(std::string_view argument, std::int64_t lower) {
  if (!names_stack_pointer(argument)) return std::string(argument);
  // %rsp cannot be an index: it is the base, and the base comes first.
  const std::size_t base = argument.find("(%rsp");
  if (base == std::string_view::npos) return std::nullopt;
  const std::string_view rest = argument.substr(base);
  if (names_stack_pointer(rest.substr(5))) return std::nullopt;
  const auto before = grow_offset(argument.substr(0, base), lower);
  if (!before) return std::nullopt;
  return *before + std::string(rest);
}

}  // namespace

std::optional<std::string> correct_stack_arguments(std::string_view arguments, std::int64_t lower) {
  if (lower == 0) return std::string(arguments);
  std::string corrected;
  while (!arguments.empty()) {
    const std::size_t blank = arguments.find(' ');
    const std::string_view argument = arguments.substr(0, blank);
    const auto text = correct_argument(argument, lower);
    if (!text) return std::nullopt;
    corrected += *text;
    if (blank == std::string_view::npos) break;
    corrected += ' ';
    arguments.remove_prefix(blank + 1);
  }
  return corrected;
}

}  // namespace reprobe
