#include "libprobe/rewrite/guards/address_places.hpp"

namespace reprobe {
namespace {

// The longest memory operand but for xsave's (Intel SDM volume 1, chapter 15).
constexpr std::int64_t kLongestFrameOperand = 64;

AddressPlace in_register(unsigned reg) { return {false, reg, {}}; }
AddressPlace in_word(const FrameWord& word) { return {true, 0, word}; }

// A 64-bit mov; `opcode` 89 writes the operand, 8b reads it.
bool is_wide_mov(const CodeInstruction& code, unsigned opcode) {
  const X86Encoding& e = code.encoding;
  return e.map == OpcodeMap::one_byte && e.opcode == opcode && e.rex_w && e.has_modrm();
}

}  // namespace

std::optional<AddressMove> address_move(const CodeInstruction& code, const FrameWords& frame) {
  const X86Encoding& e = code.encoding;
  const bool stores = is_wide_mov(code, 0x89), loads = is_wide_mov(code, 0x8b);
  if (stores || loads) {
    const unsigned from = stores ? e.reg : e.rm, to = stores ? e.rm : e.reg;
    if (e.mod == 3 && from != kRsp && to != kRsp)
      return AddressMove{in_register(from), in_register(to)};
    const auto word = frame.operand(code);
    if (!word) return std::nullopt;
    if (stores) return AddressMove{in_register(e.reg), in_word(*word)};
    return AddressMove{in_word(*word), in_register(e.reg)};
  }
  const bool pushes = is_push(code) && e.opcode >= 0x50 && e.opcode <= 0x57;
  if (!pushes && !is_pop(code)) return std::nullopt;
  auto top = frame.stack_pointer(code.address);
  if (!top || e.opcode_register == kRsp) return std::nullopt;
  if (!pushes) return AddressMove{in_word(*top), in_register(e.opcode_register)};
  top->offset -= kAddressSize;
  return AddressMove{in_register(e.opcode_register), in_word(*top)};
}

bool touches_word(const CodeInstruction& code, const FrameWords& frame, const FrameWord& word) {
  if (code.kind == InstructionKind::nop || code.is_lea()) return false;
  const auto overlaps = [&](const FrameWord& at, std::int64_t size) {
    return at.base == word.base && at.offset < word.offset + kAddressSize &&
           word.offset < at.offset + size;
  };
  if (const auto operand = frame.operand(code)) {
    const std::int64_t size =
        code.memory->size != 0 ? std::int64_t{code.memory->size} : kLongestFrameOperand;
    if (overlaps(*operand, size)) return true;
  }
  auto top = frame.stack_pointer(code.address);
  if (!top) return false;
  if (is_pop(code)) return overlaps(*top, kAddressSize);
  top->offset -= kAddressSize;
  return (is_push(code) || is_any_call(code)) && overlaps(*top, kAddressSize);
}

}  // namespace reprobe
