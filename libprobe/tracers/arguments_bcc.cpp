// bcc: the ArgumentParser_* classes of usdt_args.cc. An argument that fails is skipped, and those
// behind it get its number.
#include <array>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/arguments.hpp"
#include "libprobe/notes/operand.hpp"
#include "libprobe/tracers/arguments.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/text_scan.hpp"
#include "libprobe/tracers/x86_registers.hpp"

namespace reprobe::consumers {
namespace as_bcc {
namespace {

bool at_end(const TextScan& scan) { return scan.done() || is_blank(scan.peek()); }

// --- x86: ArgumentParser_x64

bool x86_register(TextScan& scan) {
  if (!scan.literal('%')) return false;
  const auto name = scan.run([](char c) { return is_letter(c) || is_digit(c); }, 16);
  // Its table has xmm registers too, but the program it generates reads 0 for them.
  return name && is_x86_general(*name) && *name != "eip";
}

bool identifier(TextScan& scan) {
  if (!is_letter(scan.peek()) && scan.peek() != '_') return false;
  while (scan.run([](char c) { return is_letter(c) || is_digit(c) || c == '_'; })) {
  }
  return true;
}

// parse_expr(): "$1", "%rax", "8(%rax)", "8+sym(%rip)", "sym+8(%rip)", "(%rax,%rbx,4)"
bool x86_expression(TextScan& scan) {
  if (scan.literal('$')) return scan.any_number().has_value();
  if (scan.peek() == '%') return x86_register(scan);
  bool symbol = false;
  if (is_digit(scan.peek()) || scan.peek() == '-') {
    if (!scan.any_number()) return false;
    if (scan.literal('+')) {
      symbol = identifier(scan);
      if (!symbol) return false;
    }
  } else {
    symbol = identifier(scan);
    if ((scan.peek() == '+' || scan.peek() == '-') && !scan.any_number()) return false;
  }
  if (!scan.literal('(')) return false;
  // assign_to_local() knows symbols relative to the instruction pointer only.
  if (symbol && !scan.rest().starts_with("%rip")) return false;
  if (!x86_register(scan)) return false;
  if (scan.literal(',')) {
    if (!x86_register(scan)) return false;
    if (scan.literal(',') && !scan.any_number()) return false;
  }
  return scan.literal(')');
}

bool x86(TextScan& scan) {
  TextScan sized = scan;
  if (is_digit(sized.peek()) || sized.peek() == '-') {
    if (sized.any_number() && sized.literal('@')) scan = sized;
  }
  return x86_expression(scan) && at_end(scan);
}

// --- aarch64: ArgumentParser_aarch64

bool aarch64_register(TextScan& scan) {
  if (scan.literal('x')) {
    const auto number = scan.any_number();
    return number && *number >= 0 && *number <= 31;
  }
  return scan.literal('s') && scan.literal('p');
}

bool aarch64(TextScan& scan, bool pairs) {
  const auto size = scan.any_number();
  if (!size || !is_usual_size(*size) || !scan.literal('@')) return false;
  if (scan.peek() == 'x' || scan.peek() == 's') return aarch64_register(scan);
  if (!scan.literal('[')) return scan.any_number().has_value();
  if (!aarch64_register(scan)) return false;
  if (scan.literal(',') && !scan.any_number()) {
    scan.blanks();
    if (!pairs || !aarch64_register(scan)) return false;
  }
  return scan.literal(']');
}

// --- The parsers made of regular expressions

bool regex_size(TextScan& scan) {
  const auto size = scan.number();
  return size && is_usual_size(*size) && scan.literal('@');
}

// "(?:%r)?([1-2]?[0-9]|3[0-1])"
bool ppc_register(TextScan& scan) {
  if (scan.literal('%') && !scan.literal('r')) return false;
  if (!is_digit(scan.peek())) return false;
  const auto number = scan.number();
  return number && *number <= 31;
}

bool ppc(TextScan& scan) {
  if (!regex_size(scan)) return false;
  if (scan.literal('i')) return scan.number() && at_end(scan);
  TextScan offset = scan;
  if (offset.number() && offset.literal('(')) {
    scan = offset;
    return ppc_register(scan) && scan.literal(')') && at_end(scan);
  }
  if (!ppc_register(scan)) return false;
  if (scan.literal(',') && !ppc_register(scan)) return false;
  return at_end(scan);
}

bool s390_register(TextScan& scan) {
  if (!scan.literal('%') || !scan.literal('r') || !is_digit(scan.peek())) return false;
  const auto number = scan.number();
  return number && *number <= 15;
}

bool s390(TextScan& scan) {
  const auto size = scan.number();
  if (!size || !scan.literal('@')) return false;
  if (scan.peek() == '%') return s390_register(scan) && at_end(scan);
  if (const auto number = scan.number(); number && at_end(scan)) return true;
  if (!scan.literal('(') || !s390_register(scan)) return false;
  if (scan.literal(',') && !s390_register(scan)) return false;
  return scan.literal(')') && at_end(scan);
}

bool riscv_register(TextScan& scan) {
  const auto name = scan.run([](char c) { return is_lower(c) || is_digit(c); });
  return name && is_register(*name, EM_RISCV) && !name->starts_with('x') && !name->starts_with('f');
}

bool riscv(TextScan& scan) {
  if (!regex_size(scan)) return false;
  if (!scan.number()) return riscv_register(scan) && at_end(scan);
  if (at_end(scan)) return true;
  return scan.literal('(') && riscv_register(scan) && scan.literal(')') && at_end(scan);
}

bool one(TextScan& scan, std::uint16_t machine, bool current) {
  switch (machine) {
    case EM_AARCH64:
      return aarch64(scan, current);
    case EM_PPC64:
      return ppc(scan);
    case EM_S390:
      return s390(scan);
    case EM_RISCV:
      return current && riscv(scan);
    default:  // whatever the machine, the parser for x86-64
      return x86(scan);
  }
}

// Argument::ctype_name() of usdt.cc has types of 1, 2, 4 and 8 bytes and throws for others, which
// bpftrace answers with an assertion. What has no size is read as a word.
bool aborts(std::string_view argument) {
  TextScan scan(argument);
  if (!is_digit(scan.peek()) && scan.peek() != '-') return false;
  const auto size = scan.any_number();
  return size && scan.literal('@') && !is_usual_size(*size);
}

std::optional<ArgumentFault> check(std::string_view text, std::uint16_t machine, bool current) {
  TextScan scan(text);
  for (std::size_t number = 1; !scan.done(); ++number) {
    const std::string_view argument = scan.rest();
    if (aborts(argument)) return ArgumentFault{number, reason::argument_aborts, argument};
    if (!one(scan, machine, current)) {
      return ArgumentFault{number, operand_reason(argument, machine), argument};
    }
    scan.blanks();
  }
  return std::nullopt;
}

}  // namespace
}  // namespace as_bcc

std::optional<ArgumentFault> bcc_arguments(std::string_view text, std::uint16_t machine) {
  return as_bcc::check(text, machine, true);
}

namespace {

// arch::max_arg() + 1 of bpftrace 0.17: a script's argN are the machine's argument registers.
std::size_t most_arguments(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return 6;
    case EM_AARCH64:
    case EM_PPC64:
    case EM_RISCV:
      return 8;
    case EM_S390:
      return 5;
    default:
      return 4;
  }
}

}  // namespace

std::optional<ArgumentFault> bpftrace_0_17_arguments(std::string_view text, std::uint16_t machine) {
  if (const auto fault = as_bcc::check(text, machine, false)) return fault;
  const auto arguments = parse_arguments(text, machine);
  const std::size_t most = most_arguments(machine);
  if (arguments.size() <= most) return std::nullopt;
  return ArgumentFault{most + 1, reason::argument_count, ""};
}

}  // namespace reprobe::consumers
