#include "libprobe/code/x86_capstone.hpp"

#include <array>
#include <cstdint>
#include <span>

namespace reprobe {
namespace {

// Writing a register of less than 32 bits leaves the rest of it as it was; a 32-bit write clears
// the upper half (Intel SDM volume 1, 3.4.1.1).
struct RegisterName {
  RegisterSet bit{};
  bool partial{};
};

using RegisterNames = std::array<RegisterName, X86_REG_ENDING>;

RegisterNames make_register_names() {
  // By number (Intel SDM volume 2, table 3-1): 64, 32, 16, 8 bits, and the high byte.
  constexpr std::array<std::array<x86_reg, 5>, 16> rows{{
      {X86_REG_RAX, X86_REG_EAX, X86_REG_AX, X86_REG_AL, X86_REG_AH},
      {X86_REG_RCX, X86_REG_ECX, X86_REG_CX, X86_REG_CL, X86_REG_CH},
      {X86_REG_RDX, X86_REG_EDX, X86_REG_DX, X86_REG_DL, X86_REG_DH},
      {X86_REG_RBX, X86_REG_EBX, X86_REG_BX, X86_REG_BL, X86_REG_BH},
      {X86_REG_RSP, X86_REG_ESP, X86_REG_SP, X86_REG_SPL, X86_REG_SPL},
      {X86_REG_RBP, X86_REG_EBP, X86_REG_BP, X86_REG_BPL, X86_REG_BPL},
      {X86_REG_RSI, X86_REG_ESI, X86_REG_SI, X86_REG_SIL, X86_REG_SIL},
      {X86_REG_RDI, X86_REG_EDI, X86_REG_DI, X86_REG_DIL, X86_REG_DIL},
      {X86_REG_R8, X86_REG_R8D, X86_REG_R8W, X86_REG_R8B, X86_REG_R8B},
      {X86_REG_R9, X86_REG_R9D, X86_REG_R9W, X86_REG_R9B, X86_REG_R9B},
      {X86_REG_R10, X86_REG_R10D, X86_REG_R10W, X86_REG_R10B, X86_REG_R10B},
      {X86_REG_R11, X86_REG_R11D, X86_REG_R11W, X86_REG_R11B, X86_REG_R11B},
      {X86_REG_R12, X86_REG_R12D, X86_REG_R12W, X86_REG_R12B, X86_REG_R12B},
      {X86_REG_R13, X86_REG_R13D, X86_REG_R13W, X86_REG_R13B, X86_REG_R13B},
      {X86_REG_R14, X86_REG_R14D, X86_REG_R14W, X86_REG_R14B, X86_REG_R14B},
      {X86_REG_R15, X86_REG_R15D, X86_REG_R15W, X86_REG_R15B, X86_REG_R15B},
  }};
  RegisterNames names{};
  for (std::size_t number = 0; number < rows.size(); ++number) {
    for (std::size_t width = 0; width < rows[number].size(); ++width)
      names[rows[number][width]] = {1U << number, width >= 2};
  }
  names[X86_REG_EFLAGS] = {kFlagsBit, true};
  return names;
}

RegisterName register_name(unsigned reg) {
  static const RegisterNames names = make_register_names();
  return reg < names.size() ? names[reg] : RegisterName{};
}

// Does the instruction leave its first operand as it is?
bool only_reads(const X86Encoding& e) {
  const unsigned opcode = e.opcode;
  const unsigned extension = e.reg & 7;
  if (e.map == OpcodeMap::map_0f)  // bt
    return opcode == 0xa3 || (opcode == 0xba && extension == 4);
  if (e.map != OpcodeMap::one_byte) return false;
  if (opcode >= 0x38 && opcode <= 0x3d) return true;            // cmp
  if (opcode >= 0x80 && opcode <= 0x83) return extension == 7;  // cmp
  if (opcode == 0x84 || opcode == 0x85) return true;            // test
  if (opcode == 0xa8 || opcode == 0xa9) return true;            // test
  if (opcode == 0xf6 || opcode == 0xf7) return extension < 2 || extension > 3;
  if (opcode >= 0x50 && opcode <= 0x57) return true;  // push
  return opcode == 0xff && extension >= 2;            // call, jmp, push
}

void add_registers(CodeInstruction& code, csh handle, const cs_insn& insn) {
  cs_regs read{};
  cs_regs written{};
  std::uint8_t reads = 0;
  std::uint8_t writes = 0;
  if (cs_regs_access(handle, &insn, read, &reads, written, &writes) != CS_ERR_OK) {
    code.opaque = true;
    return;
  }
  for (const auto reg : std::span(read).first(reads)) code.reads |= register_name(reg).bit;
  for (const auto reg : std::span(written).first(writes)) {
    const RegisterName name = register_name(reg);
    code.writes |= name.bit;
    if (name.partial && name.bit != kFlagsBit) code.reads |= name.bit;
  }
}

// Implicit registers that Capstone 4.0.2 does not list (Intel SDM volume 2, each instruction).
void add_unlisted(CodeInstruction& code) {
  constexpr RegisterSet rax = 1U << kRax, rcx = 1U << kRcx, rbx = 1U << 3, rsp = 1U << kRsp,
                        rbp = 1U << kRbp, r11 = 1U << 11;
  const X86Encoding& e = code.encoding;
  if (e.map == OpcodeMap::one_byte) {
    if (e.opcode == 0xd7) {  // xlat
      code.reads |= rax | rbx;
      code.writes |= rax;
    } else if (e.opcode == 0xc8) {  // enter
      code.reads |= rsp | rbp;
      code.writes |= rsp | rbp;
    } else if ((e.opcode == 0xc6 || e.opcode == 0xc7) && e.mod == 3 && (e.reg & 7) == 7) {
      code.reads |= rax;  // xabort, xbegin: only where the transaction fails
      code.writes |= rax;
    } else if (e.opcode == 0xca || e.opcode == 0xcb) {  // far ret
      code.reads |= rsp;
      code.writes |= rsp;
    }
  }
  if (e.map != OpcodeMap::map_0f) return;
  switch (e.opcode) {
    case 0x02:  // lar, lsl
    case 0x03:
    case 0xc0:  // xadd
    case 0xc1:
      code.writes |= kFlagsBit;
      break;
    case 0x05:  // syscall: the return address and the flags
      code.writes |= rax | rcx | r11;
      break;
    case 0xb0:  // cmpxchg
    case 0xb1:
      code.writes |= rax | kFlagsBit;
      break;
    default:
      break;
  }
}

}  // namespace

void add_x86_operands(CodeInstruction& code, csh handle, const cs_insn& insn) {
  add_registers(code, handle, insn);
  const cs_x86& x86 = insn.detail->x86;
  const cs_x86_op* memory = nullptr;
  for (const cs_x86_op& op : std::span(x86.operands).first(x86.op_count)) {
    if (op.type == X86_OP_IMM && !code.branch_field) code.immediate = op.imm;
    if (op.type == X86_OP_MEM && memory == nullptr) memory = &op;
    if (op.type != X86_OP_REG) continue;
    // Capstone's lists miss some destinations: what may be one counts as one.
    const RegisterSet bit = register_name(op.reg).bit;
    const bool first = &op == &x86.operands[0];
    if (first && !only_reads(code.encoding)) code.writes |= bit;
    if (!first) code.reads |= bit;
  }
  add_unlisted(code);
  if (!code.memory) return;
  if (code.memory->base) code.reads |= 1U << *code.memory->base;
  if (code.memory->index) code.reads |= 1U << *code.memory->index;
  if (memory == nullptr || (memory->mem.base == X86_REG_RIP) != code.memory->rip_relative) {
    code.opaque = true;
    return;
  }
  code.memory->displacement = memory->mem.disp;  // EVEX scales it
  code.memory->size = memory->size;
  // ucomis and comis read one number; Capstone 4 takes the whole vector for their operand.
  const X86Encoding& e = code.encoding;
  if (e.map == OpcodeMap::map_0f && (e.opcode == 0x2e || e.opcode == 0x2f))
    code.memory->size = e.operand16 ? 8 : 4;
}

}  // namespace reprobe
