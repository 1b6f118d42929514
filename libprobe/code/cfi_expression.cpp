#include "libprobe/code/cfi_expression.hpp"

#include "libprobe/code/frame_reader.hpp"

namespace reprobe {
namespace {

constexpr unsigned DW_OP_addr = 0x03, DW_OP_deref = 0x06, DW_OP_const1u = 0x08, DW_OP_constu = 0x10,
                   DW_OP_dup = 0x12, DW_OP_over = 0x14, DW_OP_pick = 0x15, DW_OP_swap = 0x16,
                   DW_OP_plus = 0x22, DW_OP_plus_uconst = 0x23, DW_OP_shl = 0x24, DW_OP_xor = 0x27,
                   DW_OP_bra = 0x28, DW_OP_eq = 0x29, DW_OP_ne = 0x2e, DW_OP_skip = 0x2f,
                   DW_OP_lit0 = 0x30, DW_OP_lit31 = 0x4f, DW_OP_reg0 = 0x50, DW_OP_reg31 = 0x6f,
                   DW_OP_breg0 = 0x70, DW_OP_breg31 = 0x8f, DW_OP_regx = 0x90, DW_OP_bregx = 0x92,
                   DW_OP_deref_size = 0x94, DW_OP_nop = 0x96;

bool in(unsigned op, unsigned first, unsigned last) { return op >= first && op <= last; }

bool without_operand(unsigned op) {
  return op == DW_OP_deref || op == DW_OP_nop || in(op, DW_OP_dup, DW_OP_over) ||
         in(op, DW_OP_swap, DW_OP_plus) || in(op, DW_OP_shl, DW_OP_xor) ||
         in(op, DW_OP_eq, DW_OP_ne) || in(op, DW_OP_lit0, DW_OP_lit31);
}

// Bytes of an operand of fixed size.
std::optional<unsigned> fixed_operand(unsigned op, const ElfHeader& header) {
  if (op == DW_OP_addr) return header.word();
  if (op == DW_OP_pick || op == DW_OP_deref_size) return 1;
  if (op == DW_OP_bra || op == DW_OP_skip) return 2;
  // const1u, const1s, const2u, ..., const8s
  if (in(op, DW_OP_const1u, DW_OP_constu - 1)) return 1U << ((op - DW_OP_const1u) / 2);
  return std::nullopt;
}

}  // namespace

std::optional<std::set<std::uint64_t>> registers_read(ByteView expression,
                                                      const ElfHeader& header) {
  std::set<std::uint64_t> registers;
  FrameCursor cursor(expression, VirtAddr{0}, header);
  while (!cursor.rest().empty()) {
    const auto op = static_cast<unsigned>(*cursor.fixed(1));
    if (without_operand(op)) continue;
    if (const auto width = fixed_operand(op, header)) {
      if (!cursor.skip(*width)) return std::nullopt;
      continue;
    }
    std::optional<std::uint64_t> reg;
    bool complete = true;
    if (op == DW_OP_constu || op == DW_OP_constu + 1 || op == DW_OP_plus_uconst) {
      complete = cursor.uleb128().has_value();  // SLEB128 has the same length
    } else if (in(op, DW_OP_reg0, DW_OP_reg31)) {
      reg = op - DW_OP_reg0;
    } else if (in(op, DW_OP_breg0, DW_OP_breg31)) {
      reg = op - DW_OP_breg0;
      complete = cursor.sleb128().has_value();
    } else if (op == DW_OP_regx || op == DW_OP_bregx) {
      reg = cursor.uleb128();
      complete = reg && (op == DW_OP_regx || cursor.sleb128());
    } else {
      return std::nullopt;
    }
    if (!complete) return std::nullopt;
    if (reg) registers.insert(*reg);
  }
  return registers;
}

}  // namespace reprobe
