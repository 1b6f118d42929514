#include "libprobe/code/unwind_program.hpp"

#include <limits>

#include "libprobe/code/cfi_opcodes.hpp"

namespace reprobe {
namespace {

// The registers that fit into the instruction's own byte.
constexpr std::uint64_t kShortRegisters = 64;

auto cannot_state(const char* what) { return fail(ErrorCode::refused, ".eh_frame", what); }

}  // namespace

void append_uleb128(Bytes& bytes, std::uint64_t value) {
  do {
    const auto low = static_cast<unsigned>(value & 0x7f);
    value >>= 7;
    bytes.push_back(static_cast<std::byte>(value == 0 ? low : low | 0x80));
  } while (value != 0);
}

void append_sleb128(Bytes& bytes, std::int64_t value) {
  for (;;) {
    const auto low = static_cast<unsigned>(value & 0x7f);
    value >>= 7;  // arithmetic
    const bool done = (low & 0x40) != 0 ? value == -1 : value == 0;
    bytes.push_back(static_cast<std::byte>(done ? low : low | 0x80));
    if (done) return;
  }
}

void append_number(Bytes& bytes, std::uint64_t value, unsigned width, const ElfHeader& header) {
  const std::size_t at = bytes.size();
  bytes.resize(at + width);
  store_uint(bytes, at, width, header.order, value);
}

std::optional<std::int64_t> CfiProgramWriter::factored(std::int64_t offset) const {
  const std::int64_t factor = cie_->data_alignment;
  if (offset == 0) return 0;
  if (factor == 0 || offset == std::numeric_limits<std::int64_t>::min() || offset % factor != 0)
    return std::nullopt;
  return offset / factor;
}

void CfiProgramWriter::block(ByteView expression) {
  append_uleb128(bytes_, expression.size());
  bytes_.insert(bytes_.end(), expression.begin(), expression.end());
}

bool CfiProgramWriter::change_cfa(const CfaRule* from, const CfaRule& to) {
  if (from != nullptr && *from == to) return true;
  if (to.is_expression) {
    opcode(DW_CFA_def_cfa_expression);
    block(to.expression);
    return true;
  }
  const bool register_rule = from != nullptr && !from->is_expression;
  if (register_rule && from->offset == to.offset) {
    opcode(DW_CFA_def_cfa_register);
    append_uleb128(bytes_, to.reg);
    return true;
  }
  const bool same_register = register_rule && from->reg == to.reg;
  const bool negative = to.offset < 0;
  const auto value = negative ? factored(to.offset) : to.offset;
  if (!value) return false;
  if (same_register) {
    opcode(negative ? DW_CFA_def_cfa_offset_sf : DW_CFA_def_cfa_offset);
  } else {
    opcode(negative ? DW_CFA_def_cfa_sf : DW_CFA_def_cfa);
    append_uleb128(bytes_, to.reg);
  }
  if (negative) append_sleb128(bytes_, *value);
  if (!negative) append_uleb128(bytes_, static_cast<std::uint64_t>(*value));
  return true;
}

void CfiProgramWriter::register_operation(unsigned op, std::uint64_t reg) {
  opcode(op);
  append_uleb128(bytes_, reg);
}

bool CfiProgramWriter::change_register(std::uint64_t reg, const RegisterRule& to) {
  using Kind = RegisterRule::Kind;
  switch (to.kind) {
    case Kind::undefined:
      register_operation(DW_CFA_undefined, reg);
      return true;
    case Kind::same_value:
      register_operation(DW_CFA_same_value, reg);
      return true;
    case Kind::in_register:
      register_operation(DW_CFA_register, reg);
      append_uleb128(bytes_, static_cast<std::uint64_t>(to.value));
      return true;
    case Kind::expression:
    case Kind::val_expression:
      register_operation(to.kind == Kind::expression ? DW_CFA_expression : DW_CFA_val_expression,
                         reg);
      block(to.expression);
      return true;
    case Kind::offset:
    case Kind::val_offset:
      break;
  }
  const auto value = factored(to.value);
  if (!value) return false;
  const bool stored = to.kind == Kind::offset;
  if (*value < 0) {
    register_operation(stored ? DW_CFA_offset_extended_sf : DW_CFA_val_offset_sf, reg);
    append_sleb128(bytes_, *value);
    return true;
  }
  if (stored && reg < kShortRegisters) {
    opcode(DW_CFA_offset | static_cast<unsigned>(reg));
  } else {
    register_operation(stored ? DW_CFA_offset_extended : DW_CFA_val_offset, reg);
  }
  append_uleb128(bytes_, static_cast<std::uint64_t>(*value));
  return true;
}

Result<void> CfiProgramWriter::change(const std::optional<CfiRow>& from, const CfiRow& to) {
  if (!change_cfa(from ? &from->cfa : nullptr, to.cfa))
    return cannot_state("a CFA offset that the alignment factor cannot state");
  const CfiRow before = from.value_or(CfiRow{});
  for (const auto& [reg, rule] : to.registers) {
    const auto old = before.registers.find(reg);
    if (old != before.registers.end() && old->second == rule) continue;
    // Always stated, though DW_CFA_restore would do where it is the CIE's: libgcc
    // (execute_cfa_program) takes that for "no rule".
    if (!change_register(reg, rule))
      return cannot_state("an offset that the alignment factor cannot state");
  }
  for (const auto& [reg, rule] : before.registers) {
    if (to.registers.contains(reg)) continue;
    // The CIE has no rule for it: only DW_CFA_restore takes a rule away.
    if (reg < kShortRegisters) {
      opcode(DW_CFA_restore | static_cast<unsigned>(reg));
    } else {
      register_operation(DW_CFA_restore_extended, reg);
    }
  }
  if (before.args_size != to.args_size) {
    opcode(DW_CFA_GNU_args_size);
    append_uleb128(bytes_, to.args_size);
  }
  if (before.return_signed != to.return_signed) opcode(DW_CFA_AARCH64_negate_ra_state);
  return {};
}

Result<void> CfiProgramWriter::advance(std::uint64_t bytes) {
  if (cie_->code_alignment == 0 || bytes % cie_->code_alignment != 0)
    return cannot_state("code that does not stand at a multiple of the code alignment");
  const std::uint64_t delta = bytes / cie_->code_alignment;
  if (delta == 0) return {};
  if (delta < DW_CFA_advance_loc) {
    opcode(DW_CFA_advance_loc | static_cast<unsigned>(delta));
  } else if (narrow<std::uint8_t>(delta)) {
    opcode(DW_CFA_advance_loc1);
    append_number(bytes_, delta, 1, *header_);
  } else if (narrow<std::uint16_t>(delta)) {
    opcode(DW_CFA_advance_loc2);
    append_number(bytes_, delta, 2, *header_);
  } else if (narrow<std::uint32_t>(delta)) {
    opcode(DW_CFA_advance_loc4);
    append_number(bytes_, delta, 4, *header_);
  } else {
    return cannot_state("a stub over 4 GiB long");
  }
  return {};
}

}  // namespace reprobe
