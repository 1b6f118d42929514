// SystemTap: the try_parse_arg_* functions of sdt_uprobe_var_expanding_visitor in tapsets.cxx,
// which read most of what compilers print.
#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/arguments.hpp"
#include "libprobe/notes/operand.hpp"
#include "libprobe/tracers/arguments.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/text_scan.hpp"

namespace reprobe::consumers {
namespace as_systemtap {
namespace {

bool decimal(TextScan& scan) {
  if (scan.peek() == '-') scan.literal('-');
  if (!is_digit(scan.peek())) return false;
  return scan.number().has_value();
}

// try_parse_arg_literal: decimal, behind one of i $ # except where none is written.
bool literal(std::string_view text, std::uint16_t machine) {
  TextScan scan(text);
  if (machine != EM_AARCH64) {
    if (scan.peek() != 'i' && scan.peek() != '$' && scan.peek() != '#') return false;
    scan.literal(scan.peek());
  }
  return decimal(scan) && scan.done();
}

// Up to three decimal terms.
bool offset(TextScan& scan) {
  for (int terms = 0; terms < 3; ++terms) {
    const char sign = scan.peek();
    if (sign == '+' || sign == '-')
      scan.literal(sign);
    else if (!is_digit(sign))
      return true;
    if (!is_digit(scan.peek())) return false;
    if (!scan.number()) return false;
  }
  return true;
}

bool reg(TextScan& scan, std::uint16_t machine) {
  scan.literal('%');
  const auto name = scan.run([](char c) { return is_lower(c) || is_digit(c); });
  if (!name) return false;
  if (machine == EM_PPC64 && is_digit(name->front())) return true;
  return is_register(*name, machine);
}

// "[reg]", "[reg, #N]", "[reg, reg]"
bool bracket(TextScan scan, std::uint16_t machine) {
  if (!scan.literal('[') || !reg(scan, machine)) return false;
  if (scan.literal(',')) {
    scan.blanks();
    scan.literal('#');
    if (is_digit(scan.peek()) || scan.peek() == '-' || scan.peek() == '+') {
      if (!offset(scan)) return false;
    } else if (machine != EM_AARCH64 || !reg(scan, machine)) {
      return false;
    }
  }
  return scan.literal(']') && scan.done();
}

// "N+N-N(reg)", "N(reg,reg,S)"
bool parenthesis(TextScan scan, std::uint16_t machine) {
  if (!offset(scan) || !scan.literal('(') || !reg(scan, machine)) return false;
  if (scan.literal(',')) {
    scan.blanks();
    if (!reg(scan, machine)) return false;
    if (scan.literal(',')) {
      const char scale = scan.peek();
      if (scale != '1' && scale != '2' && scale != '4' && scale != '8') return false;
      scan.literal(scale);
    }
  }
  return scan.literal(')') && scan.done();
}

// "8+symbol(%rip)", "symbol+8(%rip)", "symbol": it needs the symbol table.
bool symbol(TextScan scan, std::uint16_t machine) {
  if (is_digit(scan.peek()) && (!scan.number() || !scan.literal('+'))) return false;
  if (!is_letter(scan.peek()) && scan.peek() != '_') return false;
  while (scan.run([](char c) { return is_letter(c) || is_digit(c) || c == '_'; })) {
  }
  if (scan.literal('+') && !scan.number()) return false;
  return scan.done() || (machine == EM_X86_64 && scan.rest() == "(%rip)");
}

bool operand(std::string_view text, std::uint16_t machine) {
  if (literal(text, machine)) return true;
  TextScan alone(text);
  if (reg(alone, machine) && alone.done()) return true;
  // "st(1)" of x86
  const Operand known = read_operand(text, machine);
  if (known.kind == Argument::Kind::registr) return true;
  if (machine == EM_ARM || machine == EM_AARCH64) return bracket(TextScan(text), machine);
  if (machine == EM_PPC64) {
    TextScan pair(text);
    if (reg(pair, machine) && pair.literal(',') && reg(pair, machine) && pair.done()) return true;
  }
  return parenthesis(TextScan(text), machine) || symbol(TextScan(text), machine);
}

}  // namespace
}  // namespace as_systemtap

std::optional<ArgumentFault> systemtap_arguments(std::string_view text, std::uint16_t machine) {
  if (text.starts_with(':')) return std::nullopt;
  std::size_t number = 0;
  for (const Argument& argument : parse_arguments(text, machine)) {
    ++number;
    if (as_systemtap::operand(argument.operand, machine)) continue;
    // The argument's place in the text is only for people to see.
    const auto at = text.find(argument.operand);
    const std::string_view shown = text.substr(at == std::string_view::npos ? 0 : at);
    return ArgumentFault{number, operand_reason(argument.operand, machine), shown};
  }
  return std::nullopt;
}

}  // namespace reprobe::consumers
