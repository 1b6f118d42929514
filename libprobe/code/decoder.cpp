#include "libprobe/code/decoder.hpp"

#include <capstone/capstone.h>

#include <algorithm>
#include <span>

#include "libprobe/code/decode_rules.hpp"
#include "libprobe/code/machine.hpp"
#include "libprobe/code/x86_capstone.hpp"
#include "libprobe/code/x86_length.hpp"

namespace reprobe {
namespace {

// Big-endian mode, as a value that CS_MODE_BIG_ENDIAN's sign bit does not disturb.
cs_mode with_order(unsigned mode, std::endian order) {
  if (order == std::endian::big) mode |= static_cast<unsigned>(CS_MODE_BIG_ENDIAN);
  return static_cast<cs_mode>(mode);
}

struct Target {
  cs_arch arch;
  cs_mode mode;
};

std::optional<Target> capstone_target(const ElfHeader& header, bool thumb) {
  const std::endian order = code_order(header);
  switch (header.machine) {
    case EM_386:
      return Target{CS_ARCH_X86, CS_MODE_32};
    case EM_X86_64:  // x32 runs in 64-bit mode too
      return Target{CS_ARCH_X86, CS_MODE_64};
    case EM_AARCH64:
      return Target{CS_ARCH_ARM64, with_order(0, order)};
    case EM_ARM:
      return Target{CS_ARCH_ARM, with_order(thumb ? CS_MODE_THUMB : CS_MODE_ARM, order)};
    case EM_PPC64:
      return Target{CS_ARCH_PPC, with_order(CS_MODE_64, order)};
    case EM_S390:
      return Target{CS_ARCH_SYSZ, with_order(0, order)};
#if CS_API_MAJOR >= 5
    case EM_RISCV:
      return Target{
          CS_ARCH_RISCV,
          with_order(CS_MODE_RISCVC | (header.is64 ? CS_MODE_RISCV64 : CS_MODE_RISCV32), order)};
#endif
    default:
      return std::nullopt;
  }
}

// Instructions that exist to stop the program.
bool is_x86_trap(ByteView bytes) {
  const auto at = [&](std::size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  if (at(0) == 0xcc || at(0) == 0xf4) return true;             // int3, hlt
  return bytes.size() >= 2 && at(0) == 0x0f && at(1) == 0x0b;  // ud2
}

}  // namespace

struct Decoder::Capstone {
  csh handle{};
  cs_insn* instruction{};
  bool known{};  // decode_x86() left the instruction here

  // The instruction at the start of the bytes, or nullptr. Valid until the next call.
  [[nodiscard]] const cs_insn* disassemble(ByteView bytes, VirtAddr address) const {
    const auto* code = reinterpret_cast<const std::uint8_t*>(bytes.data());
    std::size_t left = bytes.size();
    std::uint64_t at = address.value;
    return cs_disasm_iter(handle, &code, &left, &at, instruction) ? instruction : nullptr;
  }

  [[nodiscard]] static bool in_group(const cs_insn& insn, unsigned group) {
    const std::span<const std::uint8_t> groups(insn.detail->groups, insn.detail->groups_count);
    return std::ranges::find(groups, group) != groups.end();
  }

  [[nodiscard]] static Flow x86_flow(const cs_insn& insn, ByteView bytes) {
    if (in_group(insn, CS_GRP_CALL)) return Flow::call;
    if (in_group(insn, CS_GRP_RET) || in_group(insn, CS_GRP_IRET)) return Flow::ret;
    if (insn.id == X86_INS_JMP || insn.id == X86_INS_LJMP) return Flow::jump;
    // `loop` is in the second group only.
    if (in_group(insn, CS_GRP_JUMP) || in_group(insn, CS_GRP_BRANCH_RELATIVE))
      return Flow::conditional;
    return is_x86_trap(bytes) ? Flow::trap : Flow::next;
  }

  [[nodiscard]] static std::optional<VirtAddr> x86_target(const cs_insn& insn) {
    const cs_x86& x86 = insn.detail->x86;
    if (x86.op_count != 1 || x86.operands[0].type != X86_OP_IMM) return std::nullopt;
    return VirtAddr{static_cast<std::uint64_t>(x86.operands[0].imm)};
  }
};

void Decoder::CloseCapstone::operator()(Capstone* capstone) const {
  if (capstone->instruction != nullptr) cs_free(capstone->instruction, 1);
  if (capstone->handle != 0) cs_close(&capstone->handle);
  delete capstone;
}

Decoder::Decoder(const ElfHeader& header, bool thumb) : header_(header), thumb_(thumb) {
  const auto target = capstone_target(header, thumb);
  if (!target) return;
  std::unique_ptr<Capstone, CloseCapstone> capstone(new Capstone);
  if (cs_open(target->arch, target->mode, &capstone->handle) != CS_ERR_OK) return;
  cs_option(capstone->handle, CS_OPT_DETAIL, CS_OPT_ON);
  capstone->instruction = cs_malloc(capstone->handle);
  if (capstone->instruction != nullptr) capstone_ = std::move(capstone);
}

std::optional<Decoder> Decoder::open(const ElfHeader& header, bool thumb) {
  Decoder decoder(header, thumb);
  if (!has_decode_rules(header.machine) && !decoder.capstone_) return std::nullopt;
  return decoder;
}

std::optional<Instruction> Decoder::decode(ByteView bytes, VirtAddr address) const {
  if (has_decode_rules(header_.machine)) return decode_by_rules(bytes, address, header_, thumb_);
  return decode_x86(bytes, address);
}

std::optional<Instruction> Decoder::decode_x86(ByteView bytes, VirtAddr address) const {
  capstone_->known = false;
  const bool is64 = header_.machine == EM_X86_64;
  if (is_x86_ud(bytes, is64)) {
    const auto size = x86_ud_length(bytes, is64);
    if (!size) return std::nullopt;
    return Instruction{address, *size, Flow::trap, {}};
  }
  const cs_insn* insn = capstone_->disassemble(bytes, address);
  if (insn == nullptr) {
    const auto size = x86_length_by_map(bytes, is64);
    if (!size) return std::nullopt;
    return Instruction{address, *size, Flow::next, {}};
  }
  capstone_->known = true;
  Instruction instruction{address, Size{insn->size}, Capstone::x86_flow(*insn, bytes), {}};
  const bool branch = instruction.flow == Flow::jump || instruction.flow == Flow::conditional ||
                      instruction.flow == Flow::call;
  if (branch) instruction.target = Capstone::x86_target(*insn);
  if (instruction.target && !is64) instruction.target->value &= 0xffffffffU;
  return instruction;
}

std::optional<CodeInstruction> Decoder::decode_operands(ByteView bytes, VirtAddr address) const {
  if (header_.machine != EM_X86_64 || !capstone_) return std::nullopt;
  const auto decoded = decode_x86(bytes, address);
  if (!decoded) return std::nullopt;
  auto code = x86_instruction(*decoded, bytes.first(static_cast<std::size_t>(decoded->size.value)));
  if (!code) return std::nullopt;
  if (!capstone_->known) {
    code->opaque |= decoded->flow != Flow::trap;
    return code;
  }
  add_x86_operands(*code, capstone_->handle, *capstone_->instruction);
  return code;
}

std::string Decoder::mnemonic(ByteView bytes, VirtAddr address) const {
  const cs_insn* insn = capstone_ ? capstone_->disassemble(bytes, address) : nullptr;
  return insn == nullptr ? std::string{} : std::string(insn->mnemonic);
}

}  // namespace reprobe
