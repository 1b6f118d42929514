#include "libprobe/tracers/fetch_argument.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>

#include "libprobe/elf/constants.hpp"
#include "libprobe/tracers/text_scan.hpp"
#include "libprobe/tracers/x86_registers.hpp"

namespace reprobe {
namespace {

using consumers::TextScan;

bool is_name(char c) { return consumers::is_lower(c) || consumers::is_digit(c); }

// "rax", "eax", "al": "ax"; "r8d": "r8".
std::optional<std::string> kernel_x86(std::string_view name) {
  if (!consumers::is_x86_general(name)) return std::nullopt;
  if (name.size() > 1 && name[0] == 'r' && consumers::is_digit(name[1])) {
    if (!consumers::is_digit(name.back())) name.remove_suffix(1);
    return std::string(name);
  }
  if (name.size() == 3 && name.ends_with('l')) return std::string(name.substr(0, 2));  // sil
  if (name.size() == 3) name.remove_prefix(1);
  return name.ends_with('l') ? fmt::format("{}x", name[0]) : std::string(name);
}

std::optional<std::string> kernel_aarch64(std::string_view name) {
  if (name == "sp") return "sp";
  if (name == "fp") return "x29";
  if (name == "lr") return "x30";
  const bool general =
      name.size() > 1 && (name[0] == 'x' || name[0] == 'w') && consumers::is_digit(name[1]);
  return general ? std::optional("x" + std::string(name.substr(1))) : std::nullopt;
}

// A constant as the kernel reads it: str_to_immediate() of kernel/trace/trace_probe.c. TextScan
// takes what is larger for the largest.
std::optional<std::string> immediate(std::int64_t number) {
  constexpr auto kMost = std::numeric_limits<long>::max(),
                 kLeast = std::numeric_limits<long>::min();
  if (number == kMost || number == kLeast) return std::nullopt;
  return fmt::format("\\{}", number);
}

// "$5", "%rdi", "-4(%rbp)".
std::optional<std::string> fetch_x86(std::string_view operand) {
  TextScan scan(operand);
  if (scan.literal('$')) {
    const auto value = scan.number();
    return value && scan.done() ? immediate(*value) : std::nullopt;
  }
  const auto offset = scan.number();
  const bool memory = scan.literal('(');
  if (offset && !memory) return std::nullopt;
  if (!scan.literal('%')) return std::nullopt;
  const auto name = scan.run(is_name);
  const auto base = name ? kernel_x86(*name) : std::nullopt;
  if (!base || (memory && !scan.literal(')')) || !scan.done()) return std::nullopt;
  return memory ? fmt::format("{:+}(%{})", offset.value_or(0), *base) : "%" + *base;
}

// "5", "x0", "[sp, 8]".
std::optional<std::string> fetch_aarch64(std::string_view operand) {
  TextScan scan(operand);
  if (const auto value = scan.number()) {
    return scan.done() ? immediate(*value) : std::nullopt;
  }
  const bool memory = scan.literal('[');
  scan.blanks();
  const auto name = scan.run(is_name);
  const auto base = name ? kernel_aarch64(*name) : std::nullopt;
  if (!base) return std::nullopt;
  if (!memory) return scan.done() ? std::optional("%" + *base) : std::nullopt;
  long offset = 0;
  scan.blanks();
  if (scan.literal(',')) {
    scan.blanks();
    const auto number = scan.number();
    if (!number) return std::nullopt;
    offset = *number;
  }
  if (!scan.blank_literal(']') || !scan.done()) return std::nullopt;
  return fmt::format("{:+}(%{})", offset, *base);
}

}  // namespace

std::optional<std::string> fetch_argument(const Argument& argument, std::uint16_t machine) {
  const int size = argument.size.value_or(0);
  const int bytes = size < 0 ? -size : size;
  const bool fits = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
  if (!fits || argument.type.starts_with('f')) return std::nullopt;
  const auto place = machine == EM_X86_64    ? fetch_x86(argument.operand)
                     : machine == EM_AARCH64 ? fetch_aarch64(argument.operand)
                                             : std::nullopt;
  if (!place) return std::nullopt;
  return fmt::format("{}:{}{}", *place, size < 0 ? 's' : 'u', 8 * bytes);
}

}  // namespace reprobe
