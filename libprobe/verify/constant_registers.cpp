#include "libprobe/verify/constant_registers.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kLongestFunction = 200'000;  // instructions
// Registers that a callee may change: rax, rcx, rdx, rsi, rdi, r8 to r11 (System V ABI AMD64).
constexpr RegisterSet kLostInCalls = 0x0fc7;
constexpr std::uint64_t kLow = 0xffffffffU;

bool is_call(const CodeInstruction& code) {
  return code.kind == InstructionKind::call || code.kind == InstructionKind::indirect_call;
}

}  // namespace

ConstantRegisters::ConstantRegisters(const FunctionFlow& flow) : flow_(flow) {
  if (flow.code.empty() || flow.code.size() > kLongestFunction) return;
  states_.resize(flow.code.size());
  arrive(0, State{});
  for (const CodeTarget& target : flow.targets) {
    if ((target.kinds & ~(kTargetBranch | kTargetSite)) == 0) continue;
    const CodeInstruction* code = flow.at(target.address);
    if (code != nullptr) arrive(static_cast<std::size_t>(code - flow.code.data()), State{});
  }
  while (!open_.empty()) {
    const std::size_t at = open_.back();
    open_.pop_back();
    step(at);
  }
}

std::optional<std::uint64_t> ConstantRegisters::before(std::size_t at, unsigned reg) const {
  if (at >= states_.size() || !states_[at] || !(*states_[at])[reg].known) return std::nullopt;
  return (*states_[at])[reg].number;
}

void ConstantRegisters::arrive(std::size_t at, const State& state) {
  if (at >= states_.size()) return;
  if (!states_[at]) {
    states_[at] = state;
    open_.push_back(at);
    return;
  }
  bool changed = false;
  for (std::size_t reg = 0; reg < state.size(); ++reg) {
    Value& value = (*states_[at])[reg];
    if (!value.known || value == state[reg]) continue;
    value = Value{};
    changed = true;
  }
  if (changed) open_.push_back(at);
}

void ConstantRegisters::step(std::size_t at) {
  const CodeInstruction& code = flow_.code[at];
  const State state = after(code, *states_[at]);
  if (code.target && !is_call(code)) {
    const CodeInstruction* target = flow_.at(*code.target);
    if (target != nullptr) arrive(static_cast<std::size_t>(target - flow_.code.data()), state);
  }
  if (!code.ends_block()) arrive(at + 1, state);
}

ConstantRegisters::State ConstantRegisters::after(const CodeInstruction& code, State state) {
  const State old = state;
  const RegisterSet written = code.opaque ? ~RegisterSet{0} : code.writes;
  for (unsigned reg = 0; reg < state.size(); ++reg) {
    const bool lost =
        (written >> reg & 1) != 0 || (is_call(code) && (kLostInCalls >> reg & 1) != 0);
    if (lost) state[reg] = Value{};
  }
  const X86Encoding& e = code.encoding;
  if (code.opaque || e.map != OpcodeMap::one_byte || e.operand16) return state;
  const auto set = [&](unsigned reg, std::uint64_t number) {
    state[reg] = Value{true, e.rex_w ? number : number & kLow};
  };
  const auto copy = [&](unsigned to, unsigned from) {
    if (old[from].known) set(to, old[from].number);
  };
  const bool in_register = e.has_modrm() && e.mod == 3;
  if (code.is_lea() && code.rip_target) set(e.reg, code.rip_target->value);
  if (e.opcode >= 0xb8 && e.opcode <= 0xbf && code.immediate) {
    set(e.opcode_register, static_cast<std::uint64_t>(*code.immediate));
  }
  if (e.opcode == 0xc7 && in_register && code.immediate) {
    set(e.rm, static_cast<std::uint64_t>(*code.immediate));
  }
  if (e.opcode == 0x89 && in_register) copy(e.rm, e.reg);
  if (e.opcode == 0x8b && in_register) copy(e.reg, e.rm);
  if ((e.opcode == 0x31 || e.opcode == 0x33) && in_register && e.reg == e.rm) set(e.rm, 0);
  return state;
}

}  // namespace reprobe
