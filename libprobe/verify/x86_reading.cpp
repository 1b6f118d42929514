#include "libprobe/verify/x86_reading.hpp"

#include <Zydis/Zydis.h>

#include <algorithm>

namespace reprobe {
namespace {

constexpr unsigned kNoGeneralRegister = 16;

const ZydisDecoder& zydis() {
  static const ZydisDecoder opened = [] {
    ZydisDecoder made;
    ZydisDecoderInit(&made, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    return made;
  }();
  return opened;
}

// The number of a general purpose register of any width; kNoGeneralRegister of all others.
unsigned register_number(ZydisRegister reg) {
  const ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, reg);
  if (whole < ZYDIS_REGISTER_RAX || whole > ZYDIS_REGISTER_R15) return kNoGeneralRegister;
  return static_cast<unsigned>(whole - ZYDIS_REGISTER_RAX);
}

std::optional<unsigned> address_register(ZydisRegister reg) {
  const unsigned number = register_number(reg);
  return number == kNoGeneralRegister ? std::nullopt : std::optional(number);
}

Operation operation_of(const ZydisDecodedInstruction& code) {
  switch (code.mnemonic) {
    case ZYDIS_MNEMONIC_NOP: {
      const bool one = code.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && code.opcode == 0x90;
      const bool more = code.opcode_map == ZYDIS_OPCODE_MAP_0F && code.opcode == 0x1f;
      return one || more ? Operation::nop : Operation::other;
    }
    case ZYDIS_MNEMONIC_LEA:
      return Operation::lea;
    case ZYDIS_MNEMONIC_MOV:
      return Operation::mov;
    case ZYDIS_MNEMONIC_MOVZX:
      return Operation::movzx;
    case ZYDIS_MNEMONIC_CMP:
      return Operation::cmp;
    case ZYDIS_MNEMONIC_TEST:
      return Operation::test;
    case ZYDIS_MNEMONIC_OR:
      return Operation::bit_or;
    case ZYDIS_MNEMONIC_XOR:
      return Operation::bit_xor;
    case ZYDIS_MNEMONIC_ADD:
      return Operation::add;
    case ZYDIS_MNEMONIC_SUB:
      return Operation::sub;
    case ZYDIS_MNEMONIC_SBB:
      return Operation::sbb;
    case ZYDIS_MNEMONIC_PUSH:
      return Operation::push;
    case ZYDIS_MNEMONIC_POP:
      return Operation::pop;
    case ZYDIS_MNEMONIC_LEAVE:
      return Operation::leave;
    case ZYDIS_MNEMONIC_STC:
      return Operation::stc;
    case ZYDIS_MNEMONIC_CLC:
      return Operation::clc;
    case ZYDIS_MNEMONIC_JZ:
      return Operation::je;
    case ZYDIS_MNEMONIC_JNZ:
      return Operation::jne;
    case ZYDIS_MNEMONIC_JRCXZ:
      return Operation::jrcxz;
    case ZYDIS_MNEMONIC_XCHG:
      return Operation::xchg;
    case ZYDIS_MNEMONIC_SETNZ:
      return Operation::setne;
    case ZYDIS_MNEMONIC_ENDBR64:
    case ZYDIS_MNEMONIC_ENDBR32:
      return Operation::endbr;
    default:
      return code.meta.category == ZYDIS_CATEGORY_SETCC ? Operation::setcc : Operation::other;
  }
}

// A branch over a distance; an operand relative to rip has the attribute IS_RELATIVE too.
bool is_direct_branch(const ZydisDecodedInstruction& code) {
  return std::ranges::any_of(
      code.raw.imm, [](const auto& field) { return field.size != 0 && field.is_relative; });
}

ReadFlow read_flow(const ZydisDecodedInstruction& code) {
  const bool relative = is_direct_branch(code);
  switch (code.mnemonic) {
    case ZYDIS_MNEMONIC_INT3:
    case ZYDIS_MNEMONIC_HLT:
    case ZYDIS_MNEMONIC_UD0:
    case ZYDIS_MNEMONIC_UD1:
    case ZYDIS_MNEMONIC_UD2:
      return ReadFlow::trap;
    case ZYDIS_MNEMONIC_XBEGIN:
      return ReadFlow::conditional;
    case ZYDIS_MNEMONIC_IRET:
    case ZYDIS_MNEMONIC_IRETD:
    case ZYDIS_MNEMONIC_IRETQ:
    case ZYDIS_MNEMONIC_SYSRET:
    case ZYDIS_MNEMONIC_SYSEXIT:
    case ZYDIS_MNEMONIC_UIRET:
      return ReadFlow::ret;
    default:
      break;
  }
  const bool branch = code.meta.branch_type != ZYDIS_BRANCH_TYPE_NONE;
  switch (code.meta.category) {
    case ZYDIS_CATEGORY_RET:
      return ReadFlow::ret;
    case ZYDIS_CATEGORY_CALL:
      return relative ? ReadFlow::call : ReadFlow::indirect_call;
    case ZYDIS_CATEGORY_COND_BR:
      return branch ? ReadFlow::conditional : ReadFlow::next;
    case ZYDIS_CATEGORY_UNCOND_BR:
      if (!branch) return ReadFlow::next;
      return relative ? ReadFlow::jump : ReadFlow::indirect_jump;
    default:
      return ReadFlow::next;
  }
}

bool is_access(const ZydisDecodedOperand& operand) {
  return operand.mem.type == ZYDIS_MEMOP_TYPE_MEM || operand.mem.type == ZYDIS_MEMOP_TYPE_VSIB;
}

// An operand whose address the instruction's own bytes tell, not an implicit one (push, movs).
bool is_encoded_memory(const ZydisDecodedOperand& operand) {
  return operand.type == ZYDIS_OPERAND_TYPE_MEMORY &&
         (operand.encoding == ZYDIS_OPERAND_ENCODING_MODRM_RM ||
          operand.encoding == ZYDIS_OPERAND_ENCODING_DISP16_32_64);
}

ReadMemory read_memory(const ZydisDecodedInstruction& code, const ZydisDecodedOperand& operand,
                       VirtAddr end, Operation operation) {
  const ZydisDecodedOperandMem& mem = operand.mem;
  ReadMemory memory;
  memory.base = address_register(mem.base);
  memory.index = address_register(mem.index);
  memory.vector_index = mem.type == ZYDIS_MEMOP_TYPE_VSIB;
  memory.scale = mem.index == ZYDIS_REGISTER_NONE ? 1 : mem.scale;
  memory.displacement = mem.disp.has_displacement ? mem.disp.value : 0;
  memory.segment = mem.segment == ZYDIS_REGISTER_FS || mem.segment == ZYDIS_REGISTER_GS;
  memory.address32 = code.address_width == 32;
  if (is_access(operand) && operation != Operation::nop) memory.bytes = operand.size / 8U;
  const auto distance = static_cast<std::uint64_t>(memory.displacement);
  if (mem.base == ZYDIS_REGISTER_RIP || mem.base == ZYDIS_REGISTER_EIP) {
    memory.address = VirtAddr{end.value + distance};
  } else if (mem.base == ZYDIS_REGISTER_NONE && mem.index == ZYDIS_REGISTER_NONE) {
    memory.address = VirtAddr{distance};
  }
  return memory;
}

void add_register(const ZydisDecodedOperand& operand, X86Reading& out) {
  const unsigned number = register_number(operand.reg.value);
  if (number == kNoGeneralRegister) return;
  const ReadRegisters bit = 1U << number;
  const bool writes = (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
  // Writing less than 32 bits leaves the rest (Intel SDM volume 1, 3.4.1.1).
  const bool partial =
      writes && (operand.size < 32 || (operand.actions & ZYDIS_OPERAND_ACTION_CONDWRITE) != 0);
  if ((operand.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0 || partial) out.reads |= bit;
  if (writes) out.writes |= bit;
}

void add_operand(const ZydisDecodedInstruction& code, const ZydisDecodedOperand& operand,
                 X86Reading& out) {
  if (operand.type == ZYDIS_OPERAND_TYPE_REGISTER) add_register(operand, out);
  if (operand.type == ZYDIS_OPERAND_TYPE_MEMORY) {
    for (const ZydisRegister reg : {operand.mem.base, operand.mem.index}) {
      if (const auto number = address_register(reg)) out.reads |= 1U << *number;
    }
    if (is_encoded_memory(operand) && !out.memory)
      out.memory = read_memory(code, operand, out.end(), out.operation);
  }
  if (operand.visibility == ZYDIS_OPERAND_VISIBILITY_HIDDEN ||
      out.operand_count == out.operands.size()) {
    return;
  }
  ReadOperand& shown = out.operands[out.operand_count++];
  shown.read = (operand.actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0;
  shown.written = (operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
  shown.bits = operand.size;
  switch (operand.type) {
    case ZYDIS_OPERAND_TYPE_REGISTER:
      shown.kind = ReadOperand::Kind::registr;
      shown.reg = register_number(operand.reg.value);
      shown.high_byte =
          operand.reg.value >= ZYDIS_REGISTER_AH && operand.reg.value <= ZYDIS_REGISTER_BH;
      break;
    case ZYDIS_OPERAND_TYPE_MEMORY:
      shown.kind = ReadOperand::Kind::memory;
      break;
    case ZYDIS_OPERAND_TYPE_IMMEDIATE:
      shown.kind =
          operand.imm.is_relative ? ReadOperand::Kind::other : ReadOperand::Kind::immediate;
      shown.immediate = operand.imm.value.s;
      break;
    default:
      shown.kind = ReadOperand::Kind::other;
      break;
  }
}

// Rewrites count the displacement from the end of the instruction.
void add_relative_fields(const ZydisDecodedInstruction& code, X86Reading& out) {
  const auto& raw = code.raw;
  for (const auto& field : raw.imm) {
    if (field.size == 0 || !field.is_relative) continue;
    out.branch_field = RelativeField{field.offset, field.size / 8U};
    out.target = VirtAddr{out.end().value + static_cast<std::uint64_t>(field.value.s)};
  }
  const bool rip = out.memory && out.memory->address && raw.modrm.mod == 0 && raw.modrm.rm == 5 &&
                   (code.attributes & ZYDIS_ATTRIB_HAS_MODRM) != 0;
  if (rip) out.rip_field = RelativeField{raw.disp.offset, raw.disp.size / 8U};
}

void add_prefixes(const ZydisDecodedInstruction& code, X86Reading& out) {
  constexpr ZydisInstructionAttributes kPrefixes =
      ZYDIS_ATTRIB_HAS_LOCK | ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE |
      ZYDIS_ATTRIB_HAS_REPNE | ZYDIS_ATTRIB_HAS_SEGMENT | ZYDIS_ATTRIB_HAS_ADDRESSSIZE;
  out.prefixed = (code.attributes & kPrefixes) != 0;
  out.locked = (code.attributes & ZYDIS_ATTRIB_HAS_LOCK) != 0;
  out.opcode_at = code.raw.prefix_count;
}

// With a 66 prefix and without REX.W AMD's processors read 16 bits of displacement, Intel's 32.
bool has_doubtful_length(const ZydisDecodedInstruction& code) {
  const bool wide = (code.attributes & ZYDIS_ATTRIB_HAS_REX) != 0 && code.raw.rex.W != 0;
  return is_direct_branch(code) && !wide && (code.attributes & ZYDIS_ATTRIB_HAS_OPERANDSIZE) != 0;
}

bool same_condition(const X86Reading& a, const X86Reading& b) {
  return a.flow == b.flow && a.mnemonic == b.mnemonic && a.prefixed == b.prefixed &&
         (a.flow == ReadFlow::conditional || a.flow == ReadFlow::jump);
}

Bytes without_fields(const X86Reading& code, ByteView bytes) {
  Bytes rest(bytes.begin(), bytes.end());
  for (const auto& field : {code.branch_field, code.rip_field}) {
    if (!field || field->at + field->width > rest.size()) continue;
    std::fill_n(rest.begin() + static_cast<std::ptrdiff_t>(field->at), field->width, std::byte{0});
  }
  return rest;
}

}  // namespace

std::optional<std::int64_t> X86Reading::immediate() const {
  std::optional<std::int64_t> found;
  for (const ReadOperand& operand : shown()) {
    if (operand.kind != ReadOperand::Kind::immediate) continue;
    if (found) return std::nullopt;
    found = operand.immediate;
  }
  // Zydis extends some to 64 bits and some not.
  const unsigned bits = operand_count == 0 ? 64 : operands[0].bits;
  if (!found || bits == 0 || bits >= 64) return found;
  const std::uint64_t sign = std::uint64_t{1} << (bits - 1);
  const std::uint64_t value = static_cast<std::uint64_t>(*found) & ((sign << 1) - 1);
  return static_cast<std::int64_t>((value ^ sign) - sign);
}

std::optional<unsigned> X86Reading::register_at(unsigned operand) const {
  if (operand >= operand_count || operands[operand].kind != ReadOperand::Kind::registr ||
      operands[operand].reg == kNoGeneralRegister || operands[operand].high_byte) {
    return std::nullopt;
  }
  return operands[operand].reg;
}

std::optional<X86Reading> read_x86(ByteView bytes, VirtAddr address) {
  ZydisDecodedInstruction code;
  std::array<ZydisDecodedOperand, ZYDIS_MAX_OPERAND_COUNT> operands;
  if (!ZYAN_SUCCESS(
          ZydisDecoderDecodeFull(&zydis(), bytes.data(), bytes.size(), &code, operands.data()))) {
    return std::nullopt;
  }
  if (has_doubtful_length(code)) return std::nullopt;
  X86Reading out;
  out.address = address;
  out.size = Size{code.length};
  out.flow = read_flow(code);
  out.operation = operation_of(code);
  out.mnemonic = static_cast<std::uint16_t>(code.mnemonic);
  add_prefixes(code, out);
  for (const ZydisDecodedOperand& operand : std::span(operands).first(code.operand_count))
    add_operand(code, operand, out);
  add_relative_fields(code, out);
  if (code.cpu_flags != nullptr) {
    const ZydisAccessedFlags& flags = *code.cpu_flags;
    out.flags_read = flags.tested & kStatusFlags;
    out.flags_written =
        (flags.modified | flags.set_0 | flags.set_1 | flags.undefined) & kStatusFlags;
  }
  return out;
}

std::optional<X86Reading> read_x86(const ElfFile& file, VirtAddr address) {
  return read_x86(file.bytes_at(address, kLongestReading), address);
}

bool same_but_target(const X86Reading& a, ByteView a_bytes, const X86Reading& b, ByteView b_bytes) {
  if (a.memory && b.memory && a.rip_field && a.memory->address != b.memory->address) return false;
  if (a.branch_field && b.branch_field && same_condition(a, b)) return true;
  return a.mnemonic == b.mnemonic && a.flow == b.flow &&
         without_fields(a, a_bytes) == without_fields(b, b_bytes);
}

bool same_effect(const X86Reading& a, ByteView a_bytes, const X86Reading& b, ByteView b_bytes) {
  return a.target == b.target && same_but_target(a, a_bytes, b, b_bytes);
}

}  // namespace reprobe
