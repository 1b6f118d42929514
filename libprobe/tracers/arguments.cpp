#include "libprobe/tracers/arguments.hpp"

#include <algorithm>
#include <cstdlib>

#include "libprobe/elf/constants.hpp"
#include "libprobe/notes/arguments.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/text_scan.hpp"
#include "libprobe/tracers/x86_registers.hpp"

namespace reprobe::consumers {
namespace {

bool names_symbol(std::string_view operand) {
  const std::string_view before = operand.substr(0, operand.find('('));
  if (before.starts_with("0x") || before.starts_with("-0x")) return false;
  return std::ranges::any_of(before, [](char c) { return is_letter(c) || c == '_'; });
}

}  // namespace

std::string_view operand_reason(std::string_view text, std::uint16_t machine) {
  const auto arguments = parse_arguments(text.substr(0, 256), machine);
  if (arguments.empty()) return reason::argument_operand;
  const Argument& argument = arguments.front();
  const std::string_view operand = argument.operand;
  const bool x86 = machine == EM_X86_64 || machine == EM_386;
  if (argument.type.starts_with('f')) return reason::argument_size;
  // Relative to a segment (thread-local variables), or not in AT&T syntax.
  if (x86 && (operand.find(':') != std::string_view::npos ||
              operand.find_first_of("%$") == std::string_view::npos)) {
    return argument.size ? reason::argument_operand : reason::argument_size;
  }
  switch (argument.kind) {
    case Argument::Kind::constant:
      if (x86 && operand.size() > 1 && !is_digit(operand[1]) && operand[1] != '-') {
        return reason::argument_symbol;
      }
      return operand.find_first_of("xX") != std::string_view::npos ? reason::argument_operand
                                                                   : reason::argument_constant;
    case Argument::Kind::registr:
      break;
    case Argument::Kind::memory:
      if (x86 && names_symbol(operand)) return reason::argument_symbol;
      if (argument.registers.size() > 1) return reason::argument_index;
      return reason::argument_operand;
    case Argument::Kind::other:
      return argument.size ? reason::argument_operand : reason::argument_size;
  }
  return argument.size && argument.type.front() != 'f' && std::abs(*argument.size) <= 8
             ? reason::argument_register
             : reason::argument_size;
}

}  // namespace reprobe::consumers
