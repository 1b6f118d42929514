#include "libprobe/code/unwind_rows.hpp"

#include <optional>
#include <string>
#include <utility>

#include "libprobe/code/cfi_expression.hpp"

namespace reprobe {
namespace {

// DWARF numbers of the processor supplements; nothing where the machine has no such column or is
// not known.
struct SpecialRegisters {
  std::optional<std::uint64_t> stack_pointer;
  std::optional<std::uint64_t> program_counter;
};

SpecialRegisters special_registers(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return {7, 16};
    case EM_386:
      return {4, 8};
    case EM_AARCH64:
      return {31, 32};
    case EM_ARM:
      return {13, 15};
    case EM_RISCV:
      return {2, std::nullopt};
    case EM_PPC64:
      return {1, std::nullopt};
    case EM_S390:
      return {15, 65};  // 65: the PSW's address
    default:
      return {};
  }
}

auto refused(std::string why) {
  return fail(ErrorCode::refused, ".eh_frame", "the code's unwind rows cannot move: " + why);
}

Result<void> check_expression(ByteView expression, const SpecialRegisters& special, bool adjusted,
                              const ElfHeader& header) {
  const auto registers = registers_read(expression, header);
  if (!registers) return refused("an expression with an unknown operation");
  if (special.program_counter && registers->contains(*special.program_counter))
    return refused("an expression reads the program counter");
  if (adjusted && registers->contains(*special.stack_pointer))
    return refused("an expression reads the stack pointer, which is lower in the stub");
  return {};
}

}  // namespace

Result<CfiRow> moved_row(const CfiRow& row, std::int64_t adjust, const ElfHeader& header) {
  const SpecialRegisters special = special_registers(header.machine);
  const bool adjusted = adjust != 0;
  if (adjusted && !special.stack_pointer)
    return refused("the machine's stack pointer is not known");
  CfiRow moved = row;
  if (row.cfa.is_expression) {
    if (auto ok = check_expression(row.cfa.expression, special, adjusted, header); !ok)
      return tl::unexpected(ok.error());
  } else if (adjusted && row.cfa.reg == *special.stack_pointer &&
             __builtin_add_overflow(row.cfa.offset, adjust, &moved.cfa.offset)) {
    return refused("the CFA's offset wraps");
  }
  for (const auto& [reg, rule] : row.registers) {
    using Kind = RegisterRule::Kind;
    if (rule.kind == Kind::expression || rule.kind == Kind::val_expression) {
      if (auto ok = check_expression(rule.expression, special, adjusted, header); !ok)
        return tl::unexpected(ok.error());
    }
    const bool holds_stack_pointer =
        rule.kind == Kind::in_register
            ? static_cast<std::uint64_t>(rule.value) == special.stack_pointer
            : rule.kind == Kind::same_value && reg == special.stack_pointer;
    if (adjusted && holds_stack_pointer)
      return refused("a rule takes the stack pointer's value, which is lower in the stub");
  }
  return moved;
}

}  // namespace reprobe
