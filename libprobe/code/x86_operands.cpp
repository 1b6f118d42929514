#include "libprobe/code/x86_operands.hpp"

namespace reprobe {
namespace {

InstructionKind group_ff(unsigned extension) {
  switch (extension & 7) {
    case 2:
    case 3:
      return InstructionKind::indirect_call;
    case 4:
    case 5:
      return InstructionKind::indirect_jump;
    default:
      return InstructionKind::other;
  }
}

InstructionKind one_byte_kind(const X86Encoding& e) {
  const unsigned opcode = e.opcode;
  if (opcode >= 0x70 && opcode <= 0x7f) return InstructionKind::conditional;
  if (opcode >= 0xe0 && opcode <= 0xe3) return InstructionKind::loop;
  switch (opcode) {
    case 0x90:  // f3 90 is pause, 41 90 xchg %r8,%rax
      return e.rep || e.opcode_register != 0 ? InstructionKind::other : InstructionKind::nop;
    case 0xc2:
    case 0xc3:
    case 0xca:
    case 0xcb:
    case 0xcf:
      return InstructionKind::ret;
    case 0xc7:
      return e.mod == 3 && (e.reg & 7) == 7 ? InstructionKind::transaction : InstructionKind::other;
    case 0xcc:
    case 0xf4:
      return InstructionKind::trap;
    case 0xe8:
      return InstructionKind::call;
    case 0xe9:
    case 0xeb:
      return InstructionKind::jump;
    case 0xff:
      return group_ff(e.reg);
    default:
      return InstructionKind::other;
  }
}

InstructionKind map_0f_kind(const X86Encoding& e, ByteView bytes) {
  const unsigned opcode = e.opcode;
  if (opcode >= 0x80 && opcode <= 0x8f) return InstructionKind::conditional;
  switch (opcode) {
    case 0x07:  // sysret, sysexit
    case 0x35:
      return InstructionKind::ret;
    case 0x0b:
    case 0xb9:
    case 0xff:
      return InstructionKind::trap;
    case 0x1e: {
      const unsigned modrm = std::to_integer<unsigned>(bytes[e.modrm_at]);
      const bool endbr = e.rep && (modrm == 0xfa || modrm == 0xfb);
      return endbr ? InstructionKind::endbr : InstructionKind::other;
    }
    case 0x1f:
      return InstructionKind::nop;
    default:
      return InstructionKind::other;
  }
}

InstructionKind kind_of(const X86Encoding& e, ByteView bytes) {
  if (e.map == OpcodeMap::one_byte) return one_byte_kind(e);
  if (e.map == OpcodeMap::map_0f) return map_0f_kind(e, bytes);
  return InstructionKind::other;
}

// Of the kinds with a displacement to their target; it ends the instruction.
std::optional<EncodedField> branch_field(InstructionKind kind, const X86Encoding& e) {
  switch (kind) {
    case InstructionKind::call:
      return EncodedField{e.opcode_at + 1, 4};
    case InstructionKind::transaction:
      return EncodedField{e.modrm_at + 1, 4};
    case InstructionKind::loop:
      return EncodedField{e.opcode_at + 1, 1};
    case InstructionKind::jump:
      return EncodedField{e.opcode_at + 1, e.opcode == 0xeb ? 1U : 4U};
    case InstructionKind::conditional:
      return EncodedField{e.opcode_at + 1, e.map == OpcodeMap::one_byte ? 1U : 4U};
    default:
      return std::nullopt;
  }
}

std::uint64_t sign_extended(ByteView bytes, const EncodedField& field) {
  const std::uint64_t value = load_uint(bytes, field.at, field.width, std::endian::little);
  const std::uint64_t sign = std::uint64_t{1} << (8 * field.width - 1);
  return (value ^ sign) - sign;
}

bool is_string_instruction(const X86Encoding& e) {
  if (e.map != OpcodeMap::one_byte) return false;
  const unsigned opcode = e.opcode;
  return (opcode >= 0x6c && opcode <= 0x6f) || (opcode >= 0xa4 && opcode <= 0xa7) ||
         (opcode >= 0xaa && opcode <= 0xaf);
}

}  // namespace

std::optional<CodeInstruction> x86_instruction(const Instruction& decoded, ByteView bytes) {
  CodeInstruction code;
  static_cast<Instruction&>(code) = decoded;
  const auto encoding = x86_encoding(bytes);
  if (!encoding) {
    code.opaque = true;
    return code;
  }
  const X86Encoding& e = code.encoding = *encoding;
  code.kind = kind_of(e, bytes);
  code.locked = e.lock;
  code.repeated_string = (e.rep || e.repne) && is_string_instruction(e);
  code.branch_field = branch_field(code.kind, e);
  if (const auto& field = code.branch_field) {
    // A 66 prefix makes it rel16 on AMD and has no effect on Intel: the length is not known.
    if (field->at + field->width != bytes.size() || (e.operand16 && !e.rex_w)) return std::nullopt;
    code.target = VirtAddr{code.end().value + sign_extended(bytes, *field)};
    if (decoded.target && decoded.target != code.target) code.opaque = true;
  }
  if (!e.is_memory()) return code;
  MemoryOperand memory;
  memory.base = e.base;
  memory.index = e.index;
  memory.scale = e.scale;
  memory.rip_relative = e.rip_relative;
  memory.segment = e.segment;
  if (e.displacement_size != 0) {
    const EncodedField field{e.displacement_at, e.displacement_size};
    memory.displacement = static_cast<std::int64_t>(sign_extended(bytes, field));
    if (e.rip_relative) {
      code.rip_field = field;
      code.rip_target =
          VirtAddr{code.end().value + static_cast<std::uint64_t>(memory.displacement)};
      // eip-relative (67): wraps at 4 GiB; nobody emits it.
      code.opaque |= e.address32;
    }
  }
  code.memory = memory;
  return code;
}

}  // namespace reprobe
