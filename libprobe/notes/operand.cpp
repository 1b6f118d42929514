#include "libprobe/notes/operand.hpp"

#include <algorithm>
#include <utility>

#include "libprobe/elf/constants.hpp"

namespace reprobe {
namespace {

using Kind = Argument::Kind;

constexpr std::string_view kDigits = "0123456789";

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// [+-] decimal, or 0x and hexadecimal.
bool is_number(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  std::string_view allowed = kDigits;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    text.remove_prefix(2);
    allowed = "0123456789abcdefABCDEF";
  }
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

// A symbol with offsets, as in "8+table" or "table@GOTOFF+8".
bool is_symbol(std::string_view text) {
  const auto in_symbol = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_.$@+-").find(c) != std::string_view::npos;
  };
  return !text.empty() && !is_number(text) && std::ranges::all_of(text, in_symbol);
}

// The parts of a comma-separated list, trimmed.
std::vector<std::string_view> parts_of(std::string_view list) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto comma = list.find(',');
    parts.push_back(trimmed(list.substr(0, comma)));
    if (comma == std::string_view::npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

// The names behind each '%' of an AT&T operand; "st(1)" is one name.
std::vector<std::string> att_registers(std::string_view text) {
  std::vector<std::string> names;
  for (auto at = text.find('%'); at != std::string_view::npos; at = text.find('%', at + 1)) {
    const std::string_view rest = text.substr(at + 1);
    const auto length = rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789");
    std::string_view name = rest.substr(0, length);
    if (name == "st" && rest.size() >= 5 && rest[2] == '(' && rest[4] == ')') {
      name = rest.substr(0, 5);
    }
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

Operand att_operand(std::string_view text, std::uint16_t machine) {
  Operand operand{.registers = att_registers(text)};
  const auto known = [&](std::string_view name) {
    return is_register(name.substr(0, name.find('(')), machine);
  };
  if (operand.registers.empty() || !std::ranges::all_of(operand.registers, known)) return operand;
  const bool segment = text.find(':') != std::string_view::npos;
  if (text.front() == '%' && text.substr(1) == operand.registers.front()) {
    operand.kind = Kind::registr;
  } else if (segment || (text.find('(') != std::string_view::npos && text.ends_with(')'))) {
    operand.kind = Kind::memory;
  }
  return operand;
}

// gcc -masm=intel: "edi", "DWORD PTR 16[rsp]", "QWORD PTR s[rip+8]", "OFFSET FLAT:s".
Operand intel_operand(std::string_view text, std::uint16_t machine) {
  Operand operand;
  if (is_register(text, machine)) return {.kind = Kind::registr, .registers = {std::string(text)}};
  if (text.starts_with("OFFSET ")) return {.kind = Kind::constant, .registers = {}};
  const auto open = text.rfind('[');
  if (open != std::string_view::npos && text.ends_with(']')) {
    operand.kind = Kind::memory;
    std::string_view inner = text.substr(open + 1, text.size() - open - 2);
    while (!inner.empty()) {
      const auto end = inner.find_first_of("+-*");
      const std::string_view part = trimmed(inner.substr(0, end));
      if (is_register(part, machine)) operand.registers.emplace_back(part);
      inner = end == std::string_view::npos ? std::string_view{} : inner.substr(end + 1);
    }
  } else if (text.find(" PTR ") != std::string_view::npos || is_symbol(text)) {
    operand.kind = Kind::memory;  // at a symbol's address, in either syntax
  }
  // A bare number is an address to one syntax and a value to the other: other.
  return operand;
}

Operand x86_operand(std::string_view text, std::uint16_t machine) {
  if (text.starts_with('$')) return {.kind = Kind::constant, .registers = {}};
  if (text.find('%') != std::string_view::npos) return att_operand(text, machine);
  return intel_operand(text, machine);
}

// aarch64 "[x0, w1, sxtw 2]", arm "[r1, r2, lsl #2]": registers are a part's first word.
Operand bracket_operand(std::string_view text, std::uint16_t machine) {
  if (is_register(text, machine)) return {.kind = Kind::registr, .registers = {std::string(text)}};
  if (is_number(text.starts_with('#') ? text.substr(1) : text)) {
    return {.kind = Kind::constant, .registers = {}};
  }
  if (text.ends_with('!')) text.remove_suffix(1);
  if (!text.starts_with('[') || !text.ends_with(']')) return {};
  Operand operand;
  for (std::string_view part : parts_of(text.substr(1, text.size() - 2))) {
    if (part.starts_with('-')) part.remove_prefix(1);
    const std::string_view word = part.substr(0, part.find(' '));
    if (is_register(word, machine)) operand.registers.emplace_back(word);
  }
  if (!operand.registers.empty()) operand.kind = Kind::memory;
  return operand;
}

// A register of s390x ("%r2"), riscv ("a0") or ppc64, where compilers print the bare number and
// gdb (ppc_stap_parse_special_token) reads "9" as r9; "" where it is none.
std::string register_name(std::string_view text, std::uint16_t machine) {
  if (text.starts_with('%')) text.remove_prefix(1);
  std::string name(text);
  if (machine == EM_PPC64 && is_number(text)) name.insert(0, 1, 'r');
  return is_register(name, machine) ? name : std::string{};
}

// "disp(base)" and "disp(index,base)": registers in the last parentheses.
Operand parenthesis_operand(std::string_view text, std::uint16_t machine) {
  const auto open = text.rfind('(');
  if (open == std::string_view::npos || !text.ends_with(')')) return {};
  Operand operand{.kind = Kind::memory, .registers = {}};
  for (const std::string_view part : parts_of(text.substr(open + 1, text.size() - open - 2))) {
    std::string name = register_name(part, machine);
    if (name.empty()) return {};
    operand.registers.push_back(std::move(name));
  }
  return operand;
}

Operand plain_operand(std::string_view text, std::uint16_t machine) {
  if (std::string name = register_name(text, machine); !name.empty()) {
    return {.kind = Kind::registr, .registers = {std::move(name)}};
  }
  if (is_number(text)) return {.kind = Kind::constant, .registers = {}};
  return parenthesis_operand(text, machine);
}

// sys/sdt.h writes constants as "i9" (the %I modifier); gdb's stap_integer_prefixes on ppc. An
// unmarked number up to 31 is a register. "9,3" is the indexed address r9 + r3.
Operand ppc64_operand(std::string_view text) {
  if (text.starts_with('i') && is_number(text.substr(1))) {
    return {.kind = Kind::constant, .registers = {}};
  }
  if (const auto parts = parts_of(text); parts.size() == 2) {
    Operand operand{.kind = Kind::memory, .registers = {}};
    for (const std::string_view part : parts) {
      operand.registers.push_back(register_name(part, EM_PPC64));
      if (operand.registers.back().empty()) return parenthesis_operand(text, EM_PPC64);
    }
    return operand;
  }
  return plain_operand(text, EM_PPC64);
}

}  // namespace

Operand read_operand(std::string_view text, std::uint16_t machine) {
  if (text.empty()) return {};
  switch (machine) {
    case EM_386:
    case EM_X86_64:
      return x86_operand(text, machine);
    case EM_AARCH64:
    case EM_ARM:
      return bracket_operand(text, machine);
    case EM_PPC64:
      return ppc64_operand(text);
    case EM_S390:
    case EM_RISCV:
      return plain_operand(text, machine);
    default:
      return {};
  }
}

}  // namespace reprobe
