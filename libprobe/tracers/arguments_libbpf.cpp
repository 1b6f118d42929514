// libbpf: parse_usdt_spec() and parse_usdt_arg() of usdt.c, which are rows of sscanf() formats.
#include <array>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/operand.hpp"
#include "libprobe/tracers/arguments.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/text_scan.hpp"
#include "libprobe/tracers/x86_registers.hpp"

namespace reprobe::consumers {
namespace as_libbpf {
namespace {

constexpr std::size_t kMaxArguments = 12;  // USDT_MAX_ARG_CNT

// What a format gave: nothing where it does not match.
struct Match {
  bool known_registers{};
  std::string_view rest;
};
using Format = std::optional<Match>(TextScan scan);

bool not_comma(char c) { return c != ','; }
bool not_close(char c) { return c != ')'; }
bool lower_or_digit(char c) { return is_lower(c) || is_digit(c); }

Match matched(TextScan scan, bool known_registers) {
  scan.blanks();
  return {known_registers, scan.rest()};
}

// --- x86

// " ( %%%15[^,] , %%%15[^,] , %d ) " and, without a scale, " ( %%%15[^,] , %%%15[^)] ) "
std::optional<Match> x86_index(TextScan scan, bool scale) {
  if (!scan.blank_literal('(') || !scan.blank_literal('%')) return std::nullopt;
  const auto base = scan.run(not_comma);
  if (!base || !scan.blank_literal(',') || !scan.blank_literal('%')) return std::nullopt;
  const auto index = scale ? scan.run(not_comma) : scan.run(not_close);
  if (!index) return std::nullopt;
  bool known = is_x86_general(*base) && is_x86_general(*index);
  if (scale) {
    if (!scan.blank_literal(',')) return std::nullopt;
    const auto factor = scan.number();
    if (!factor) return std::nullopt;
    known = known && (*factor == 1 || *factor == 2 || *factor == 4 || *factor == 8);
  }
  // sscanf() counts the conversions before it looks for the parenthesis.
  known = scan.blank_literal(')') && known;
  return matched(scan, known);
}

std::optional<Match> x86_dereference(TextScan scan) {
  if (!scan.blank_literal('(') || !scan.blank_literal('%')) return std::nullopt;
  const auto base = scan.run(not_close);
  if (!base) return std::nullopt;
  const bool closed = scan.blank_literal(')');
  return matched(scan, closed && is_x86_general(*base));
}

std::optional<Match> x86_register(TextScan scan) {
  if (!scan.blank_literal('%')) return std::nullopt;
  scan.blanks();
  const auto name = scan.run([](char c) { return !is_blank(c); });
  if (!name) return std::nullopt;
  return matched(scan, is_x86_general(*name));
}

std::optional<Match> x86_constant(TextScan scan) {
  if (!scan.blank_literal('$') || !scan.number()) return std::nullopt;
  return matched(scan, true);
}

template <typename Step>
std::optional<Match> with_offset(TextScan scan, Step step) {
  if (!scan.number()) return std::nullopt;
  return step(scan);
}

std::optional<Match> x86(TextScan scan, bool indexed) {
  const auto scaled = [](TextScan s) { return x86_index(s, true); };
  const auto plain = [](TextScan s) { return x86_index(s, false); };
  if (indexed) {
    if (auto m = with_offset(scan, scaled)) return m;
    if (auto m = scaled(scan)) return m;
    if (auto m = with_offset(scan, plain)) return m;
    if (auto m = plain(scan)) return m;
  }
  if (auto m = with_offset(scan, x86_dereference)) return m;
  if (auto m = x86_dereference(scan)) return m;
  if (auto m = x86_register(scan)) return m;
  return x86_constant(scan);
}

// --- aarch64 and arm: " [ %15[a-z0-9] , %ld ] ", " [ %15[a-z0-9] ] ", "%ld", " %15[a-z0-9]"; arm
// writes # before numbers.

bool is_aarch64_register(std::string_view name) {
  TextScan scan(name);
  if (name == "sp") return true;
  if (!scan.literal('x')) return false;
  const auto number = scan.number();  // "x%d": what follows the number is not looked at
  return number && *number >= 0 && *number < 31;
}

bool is_arm_register(std::string_view name) {
  constexpr std::array<std::string_view, 16> kNames{"r0", "r1", "r2", "r3", "r4",  "r5",
                                                    "r6", "r7", "r8", "r9", "r10", "fp",
                                                    "ip", "sp", "lr", "pc"};
  return std::ranges::find(kNames, name) != kNames.end();
}

std::optional<Match> bracket(TextScan scan, bool arm) {
  const auto known = [arm](std::string_view name) {
    return arm ? is_arm_register(name) : is_aarch64_register(name);
  };
  TextScan memory = scan;
  if (memory.blank_literal('[')) {
    memory.blanks();
    const auto base = memory.run(lower_or_digit);
    if (!base) return std::nullopt;
    TextScan offset = memory;
    if (offset.blank_literal(',') && (!arm || offset.blank_literal('#')) && offset.number()) {
      const bool closed = offset.blank_literal(']');
      return matched(offset, closed && known(*base));
    }
    const bool closed = memory.blank_literal(']');
    return matched(memory, closed && known(*base));
  }
  TextScan constant = scan;
  if ((!arm || constant.blank_literal('#')) && constant.number()) return matched(constant, true);
  scan.blanks();
  const auto name = scan.run(lower_or_digit);
  if (!name) return std::nullopt;
  return matched(scan, known(*name));
}

// --- s390x: "%ld ( %%r%u )", "%%r%u", "%ld"

std::optional<Match> s390(TextScan scan) {
  const auto reg = [](TextScan& s) -> std::optional<bool> {
    if (!s.blank_literal('%') || !s.literal('r')) return std::nullopt;
    const auto number = s.number();
    if (!number) return std::nullopt;
    return *number >= 0 && *number <= 15;
  };
  TextScan constant = scan;
  if (constant.number()) {
    TextScan memory = constant;
    if (memory.blank_literal('(')) {
      if (const auto known = reg(memory)) {
        const bool closed = memory.blank_literal(')');
        return matched(memory, closed && *known);
      }
    }
    return matched(constant, true);
  }
  const auto known = reg(scan);
  if (!known) return std::nullopt;
  return matched(scan, *known);
}

// --- riscv: "%ld ( %15[a-z0-9] )", "%ld", " %15[a-z0-9]"

std::optional<Match> riscv(TextScan scan) {
  const auto known = [](std::string_view name) {
    // libbpf's table has the ABI names, without zero and fp.
    return is_register(name, EM_RISCV) && name != "zero" && name != "fp" &&
           !name.starts_with('x') && !name.starts_with('f');
  };
  TextScan constant = scan;
  if (constant.number()) {
    TextScan memory = constant;
    if (memory.blank_literal('(')) {
      memory.blanks();
      if (const auto base = memory.run(lower_or_digit)) {
        const bool closed = memory.blank_literal(')');
        return matched(memory, closed && known(*base));
      }
    }
    return matched(constant, true);
  }
  scan.blanks();
  const auto name = scan.run(lower_or_digit);
  if (!name) return std::nullopt;
  return matched(scan, known(*name));
}

struct Dialect {
  bool indexed{};  // x86: indexed operands
  bool arm{};      // knows EM_ARM
};

std::optional<Match> operand(TextScan scan, std::uint16_t machine, Dialect dialect) {
  switch (machine) {
    case EM_X86_64:
    case EM_386:
      return x86(scan, dialect.indexed);
    case EM_AARCH64:
      return bracket(scan, false);
    case EM_ARM:
      return bracket(scan, true);
    case EM_S390:
      return s390(scan);
    default:
      return riscv(scan);
  }
}

bool knows(std::uint16_t machine, Dialect dialect) {
  switch (machine) {
    case EM_X86_64:
    case EM_386:
    case EM_AARCH64:
    case EM_S390:
    case EM_RISCV:
      return true;
    default:
      return machine == EM_ARM && dialect.arm;
  }
}

// A dereference whose "%15[^,]" ran over its own parenthesis into the next argument.
bool ran_over(std::string_view text, std::uint16_t machine) {
  if (machine != EM_X86_64 && machine != EM_386) return false;
  const auto end = text.find(' ');
  return end != std::string_view::npos && x86(TextScan(text.substr(0, end)), true) &&
         text.substr(0, end).ends_with(')');
}

std::optional<ArgumentFault> check(std::string_view text, std::uint16_t machine, Dialect dialect) {
  if (text.empty() || text.starts_with(':')) return std::nullopt;  // parse_usdt_note
  if (!knows(machine, dialect)) return ArgumentFault{1, reason::argument_machine, text};
  for (std::size_t number = 1; !text.empty(); ++number) {
    if (number > kMaxArguments) return ArgumentFault{number, reason::too_many_arguments, text};
    TextScan scan(text);
    const auto size = scan.int_number();
    if (!size || !scan.blank_literal('@'))
      return ArgumentFault{number, reason::argument_size, text};
    const auto match = operand(scan, machine, dialect);
    if (!is_usual_size(*size)) return ArgumentFault{number, reason::argument_size, text};
    if (!match) return ArgumentFault{number, operand_reason(text, machine), text};
    if (!match->known_registers) {
      const bool order = dialect.indexed && ran_over(scan.rest(), machine);
      return ArgumentFault{number, order ? reason::argument_order : operand_reason(text, machine),
                           text};
    }
    text = match->rest;
  }
  return std::nullopt;
}

}  // namespace
}  // namespace as_libbpf

std::optional<ArgumentFault> libbpf_arguments(std::string_view text, std::uint16_t machine) {
  return as_libbpf::check(text, machine, {.indexed = true, .arm = true});
}

std::optional<ArgumentFault> libbpf_1_1_arguments(std::string_view text, std::uint16_t machine) {
  return as_libbpf::check(text, machine, {.indexed = false, .arm = false});
}

}  // namespace reprobe::consumers
