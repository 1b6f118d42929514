// perf: synthesize_sdt_probe_arg() of probe-file.c and the machines' arch_sdt_arg_parse_op().
// An operand it does not know is left out; a size it does not know ends the scan of the file.
#include <fmt/format.h>

#include "libprobe/elf/constants.hpp"
#include "libprobe/tracers/arguments.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/text_scan.hpp"
#include "libprobe/tracers/x86_registers.hpp"

namespace reprobe::consumers {
namespace as_perf {
namespace {

// "^([+\-]?)([0-9]*)(\(?)(%[a-z][a-z0-9]+)(\)?)$", then a name that the kernel knows.
bool x86(TextScan scan) {
  if (scan.peek() == '+' || scan.peek() == '-') scan.literal(scan.peek());
  while (is_digit(scan.peek())) scan.literal(scan.peek());
  scan.literal('(');
  if (!scan.literal('%')) return false;
  const auto name = scan.run([](char c) { return is_lower(c) || is_digit(c); });
  // It renames ah to ax, and so reads the wrong byte; the kernel knows no rip.
  if (!name || !is_x86_general(*name) || name->ends_with("ip")) return false;
  scan.literal(')');
  return scan.done();
}

bool small_number(TextScan& scan, long most) {
  if (!is_digit(scan.peek())) return false;
  const auto number = scan.number();
  return number && *number <= most;
}

// "^(x[1-2]?[0-9]|3[0-1])$" and "^\[sp(, )?([0-9]+)?\]$"
bool aarch64(TextScan scan) {
  if (scan.literal('x')) return small_number(scan, 29) && scan.done();
  if (!scan.literal('[') || !scan.literal('s') || !scan.literal('p')) return false;
  if (scan.literal(',')) scan.blanks();
  if (is_digit(scan.peek())) scan.number();
  return scan.literal(']') && scan.done();
}

// "^(%r)?([1-2]?[0-9]|3[0-1])$" and "^(\-)?([0-9]+)\((%r)?([1-2]?[0-9]|3[0-1])\)$"
bool ppc(TextScan scan) {
  const auto reg = [](TextScan& s) {
    if (s.literal('%') && !s.literal('r')) return false;
    return small_number(s, 31);
  };
  TextScan memory = scan;
  if (memory.number() && memory.literal('(')) {
    return reg(memory) && memory.literal(')') && memory.done();
  }
  return reg(scan) && scan.done();
}

bool operand(std::string_view text, std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
    case EM_386:
      return x86(TextScan(text));
    case EM_AARCH64:
      return aarch64(TextScan(text));
    case EM_PPC64:
      return ppc(TextScan(text));
    default:
      return false;
  }
}

bool knows(std::uint16_t machine) {
  return machine == EM_X86_64 || machine == EM_386 || machine == EM_AARCH64 || machine == EM_PPC64;
}

// The next argument: up to a blank, but "[sp, 8]" is one.
std::string_view next_argument(TextScan& scan) {
  const std::string_view start = scan.rest();
  const auto step = [&scan] {
    while (!scan.done() && !is_blank(scan.peek())) scan.literal(scan.peek());
  };
  step();
  if (start.substr(0, start.size() - scan.rest().size()).ends_with("[sp,")) {
    scan.blanks();
    step();
  }
  return start.substr(0, start.size() - scan.rest().size());
}

struct PerfArgument {
  std::string_view text;
  long size{};  // 0 where none is written
  std::string_view operand;
};

PerfArgument split(std::string_view text) {
  const auto at = text.find('@');
  if (at == std::string_view::npos) return {text, 0, text};
  // strtol() of what stands before '@'; nothing there counts as 0.
  TextScan size(text.substr(0, at));
  return {text, size.number().value_or(0), text.substr(at + 1)};
}

// Calls `visit` with each argument and its number, until it says false.
template <typename Visit>
void for_each_argument(std::string_view text, Visit visit) {
  if (text.starts_with(':')) return;
  TextScan scan(text);
  scan.blanks();
  for (std::size_t number = 1; !scan.done(); ++number) {
    if (!visit(number, split(next_argument(scan)))) return;
    scan.blanks();
  }
}

}  // namespace
}  // namespace as_perf

std::string perf_definition(std::string_view text, std::uint16_t machine) {
  std::string definition;
  as_perf::for_each_argument(text, [&](std::size_t number, const as_perf::PerfArgument& argument) {
    if (as_perf::operand(argument.operand, machine)) {
      definition += fmt::format(" arg{}={}:{}", number, argument.operand, argument.size);
    }
    return true;
  });
  return definition;
}

std::optional<ArgumentFault> perf_arguments(std::string_view text, std::uint16_t machine) {
  std::optional<ArgumentFault> first;
  as_perf::for_each_argument(text, [&](std::size_t number, const as_perf::PerfArgument& argument) {
    if (argument.size < -8 || argument.size > 8) {
      first = ArgumentFault{number, reason::argument_stops_scan, argument.text};
      return false;
    }
    if (!first && !as_perf::operand(argument.operand, machine)) {
      const std::string_view why = as_perf::knows(machine) ? operand_reason(argument.text, machine)
                                                           : reason::argument_machine;
      first = ArgumentFault{number, why, argument.text};
    }
    return true;
  });
  return first;
}

}  // namespace reprobe::consumers
