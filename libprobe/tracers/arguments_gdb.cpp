// gdb: stap_parse_probe_arguments() of stap-probe.c, and the operands that the architectures'
// *_stap_parse_special_token add. One argument that fails loses all of the probe's.
#include <string>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/operand.hpp"
#include "libprobe/tracers/arguments.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/text_scan.hpp"
#include "libprobe/tracers/x86_registers.hpp"

namespace reprobe::consumers {
namespace as_gdb {
namespace {

// "N@" is one digit with or without a minus; without it the whole is the operand.
bool size(TextScan& scan) {
  TextScan sized = scan;
  sized.literal('-');
  const char digit = sized.peek();
  if (!is_digit(digit)) return true;
  sized.literal(digit);
  if (!sized.literal('@')) return true;
  scan = sized;
  return digit == '1' || digit == '2' || digit == '4' || digit == '8';
}

std::optional<std::string_view> word(TextScan& scan) {
  return scan.run([](char c) { return is_letter(c) || is_digit(c); }, 16);
}

// gdb has r8l for what assemblers, and so compilers, call r8b.
bool is_gdb_register(std::string_view name, std::uint16_t machine) {
  if (machine != EM_X86_64 || !name.starts_with('r')) return is_register(name, machine);
  if (!name.ends_with('l')) return !name.ends_with('b') && is_register(name, machine);
  return is_register(std::string(name.substr(0, name.size() - 1)) + "b", machine);
}

bool percent_register(TextScan& scan, std::uint16_t machine) {
  if (!scan.literal('%')) return false;
  const auto name = word(scan);
  return name && is_gdb_register(*name, machine);
}

// "$N", "%reg", "N(%reg)", "N(%reg,%reg,S)", and the three terms of "a+b-c(%reg)".
bool x86(TextScan& scan, std::uint16_t machine) {
  if (scan.literal('$')) return scan.number().has_value();
  if (scan.peek() == '%') return percent_register(scan, machine);
  int terms = 0;
  while (scan.peek() == '-' || scan.peek() == '+' || is_digit(scan.peek())) {
    if (!scan.number()) return false;
    ++terms;
  }
  if (terms != 0 && terms != 1 && terms != 3) return false;
  if (!scan.literal('(') || !percent_register(scan, machine)) return false;
  if (scan.literal(',')) {
    if (terms == 3 || !percent_register(scan, machine)) return false;
    if (scan.literal(',') && !scan.number()) return false;
  }
  return scan.literal(')');
}

// "[reg]", "[reg, #N]", "#N", "N", "reg"
bool bracket(TextScan& scan, std::uint16_t machine) {
  if (scan.literal('[')) {
    const auto base = word(scan);
    if (!base || !is_gdb_register(*base, machine)) return false;
    if (scan.literal(',')) {
      scan.blanks();
      scan.literal('#');
      if (!scan.number()) return false;
    }
    return scan.literal(']');
  }
  scan.literal('#');
  if (is_digit(scan.peek()) || scan.peek() == '-') return scan.number().has_value();
  const auto name = word(scan);
  return name && is_gdb_register(*name, machine);
}

// "iN", "N(reg)", "reg": ppc_stap_parse_special_token takes a bare number for a register.
bool ppc(TextScan& scan, std::uint16_t machine) {
  if (scan.literal('i')) return scan.number().has_value();
  scan.literal('%');
  if (!is_digit(scan.peek()) && scan.peek() != '-') {
    const auto name = word(scan);
    return name && is_gdb_register(*name, machine);
  }
  if (!scan.number()) return false;
  if (!scan.literal('(')) return true;
  scan.literal('%');
  return word(scan).has_value() && scan.literal(')');
}

// "N", "%reg", "N(%reg)"
bool s390(TextScan& scan, std::uint16_t machine) {
  if (scan.peek() == '%') return percent_register(scan, machine);
  const bool number = scan.number().has_value();
  if (!scan.literal('(')) return number;
  return percent_register(scan, machine) && scan.literal(')');
}

bool operand(TextScan& scan, std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
    case EM_386:
      return x86(scan, machine);
    case EM_AARCH64:
    case EM_ARM:
      return bracket(scan, machine);
    case EM_PPC64:
      return ppc(scan, machine);
    default:
      return s390(scan, machine);
  }
}

// gdbarch_stap_is_single_operand is set for these.
bool knows(std::uint16_t machine) {
  return machine == EM_X86_64 || machine == EM_386 || machine == EM_AARCH64 || machine == EM_ARM ||
         machine == EM_PPC64 || machine == EM_S390;
}

}  // namespace
}  // namespace as_gdb

std::optional<ArgumentFault> gdb_arguments(std::string_view text, std::uint16_t machine) {
  if (text.empty() || text.starts_with(':')) return std::nullopt;
  if (!as_gdb::knows(machine)) return ArgumentFault{1, reason::argument_machine, text};
  TextScan scan(text);
  for (std::size_t number = 1; !scan.done(); ++number) {
    const std::string_view argument = scan.rest();
    // $_probe_arg0 to $_probe_arg11 are all there are (break-catch-throw.c names them so, too).
    constexpr std::size_t kMost = 12;
    if (number > kMost) return ArgumentFault{number, reason::too_many_arguments, argument};
    if (!as_gdb::size(scan)) return ArgumentFault{number, reason::argument_size, argument};
    if (!as_gdb::operand(scan, machine) || (!scan.done() && !is_blank(scan.peek()))) {
      return ArgumentFault{number, operand_reason(argument, machine), argument};
    }
    scan.blanks();
  }
  return std::nullopt;
}

}  // namespace reprobe::consumers
