#include "libprobe/code/stack_returns.hpp"

#include <algorithm>
#include <array>

namespace reprobe {
namespace {

// Thunks are five or six instructions long.
constexpr unsigned kLongestThunk = 16;
constexpr std::int64_t kWord = 8;
constexpr std::size_t kEntered = ~std::size_t{0};  // origin: the function's entry

// How much lower a register is than the stack pointer was at some earlier point. Where that is not
// known the point is the instruction that made it so.
struct Depth {
  std::size_t origin{};
  std::int64_t bytes{};
  bool operator==(const Depth&) const = default;
};

struct State {
  Depth sp;
  std::optional<Depth> bp;
  bool operator==(const State&) const = default;
};

bool is_plain_opcode(const CodeInstruction& code, unsigned opcode) {
  return code.encoding.map == OpcodeMap::one_byte && code.encoding.opcode == opcode;
}

bool in_opcodes(const CodeInstruction& code, unsigned first, unsigned last) {
  return code.encoding.map == OpcodeMap::one_byte && code.encoding.opcode >= first &&
         code.encoding.opcode <= last;
}

unsigned digit_of(const CodeInstruction& code) { return code.encoding.reg & 7; }

bool pushes(const CodeInstruction& code) {
  return in_opcodes(code, 0x50, 0x57) || is_plain_opcode(code, 0x68) ||
         is_plain_opcode(code, 0x6a) || is_plain_opcode(code, 0x9c) ||
         (is_plain_opcode(code, 0xff) && digit_of(code) == 6);
}

bool pops(const CodeInstruction& code) {
  return in_opcodes(code, 0x58, 0x5f) || is_plain_opcode(code, 0x9d) || is_plain_opcode(code, 0x8f);
}

bool calls_near(const CodeInstruction& code) {
  return code.kind == InstructionKind::call || code.kind == InstructionKind::indirect_call;
}

// The depth of a register that an address is computed from; nothing where that is another one.
std::optional<Depth> base_depth(const CodeInstruction& code, const State& state) {
  if (!code.memory || code.memory->index || code.memory->segment) return std::nullopt;
  std::optional<Depth> depth;
  if (code.memory->base == kRsp) depth = state.sp;
  if (code.memory->base == kRbp) depth = state.bp;
  if (depth) depth->bytes -= code.memory->displacement;
  return depth;
}

// What an instruction leaves in a stack or frame pointer that it writes; nothing: not known.
std::optional<Depth> computed(const CodeInstruction& code, const State& state) {
  const X86Encoding& e = code.encoding;
  if (code.opaque || !e.rex_w || e.map != OpcodeMap::one_byte) return std::nullopt;
  if (code.is_lea()) return base_depth(code, state);
  const bool group = (e.opcode == 0x81 || e.opcode == 0x83) && e.mod == 3 && code.immediate;
  if (group && e.rm == kRsp && (digit_of(code) == 0 || digit_of(code) == 5)) {
    const std::int64_t bytes = digit_of(code) == 5 ? *code.immediate : -*code.immediate;
    return Depth{state.sp.origin, state.sp.bytes + bytes};
  }
  const bool from_rm = e.opcode == 0x8b && e.mod == 3;
  const bool from_reg = e.opcode == 0x89 && e.mod == 3;
  if (!from_rm && !from_reg) return std::nullopt;
  const unsigned from = from_rm ? e.rm : e.reg;
  if (from == kRsp) return state.sp;
  return from == kRbp ? state.bp : std::nullopt;
}

// The state behind the instruction `at`.
State step(const CodeInstruction& code, std::size_t at, const State& before) {
  State after = before;
  const Depth unknown{at, 0};
  if (calls_near(code)) return after;
  if (is_plain_opcode(code, 0xc9)) {  // leave
    after.sp = before.bp ? Depth{before.bp->origin, before.bp->bytes - kWord} : unknown;
    after.bp.reset();
    return after;
  }
  const bool writes_sp = (code.writes & (1U << kRsp)) != 0;
  const bool writes_bp = (code.writes & (1U << kRbp)) != 0;
  if (writes_bp) after.bp = pops(code) ? std::nullopt : computed(code, before);
  if (!code.opaque && !code.encoding.operand16 && pushes(code)) {
    after.sp.bytes += kWord;
  } else if (!code.opaque && !code.encoding.operand16 && pops(code) &&
             !(is_plain_opcode(code, 0x5c) && code.encoding.opcode_register == kRsp)) {
    after.sp.bytes -= kWord;
  } else if (writes_sp || code.opaque) {
    after.sp = computed(code, before).value_or(unknown);
  }
  return after;
}

// May it write to its memory operand?
bool may_write(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (!code.memory || code.is_lea() || code.kind == InstructionKind::nop || calls_near(code))
    return false;
  if (code.kind == InstructionKind::indirect_jump) return false;
  if (e.map != OpcodeMap::one_byte) return false;  // no address is written with those
  constexpr std::array<unsigned, 14> kReads{0x8b, 0x63, 0x3b, 0x3a, 0x39, 0x38, 0x03,
                                            0x2b, 0x84, 0x85, 0x69, 0x6b, 0x0b, 0x23};
  if (std::ranges::find(kReads, e.opcode) != kReads.end()) return false;
  if (e.opcode >= 0x80 && e.opcode <= 0x83) return digit_of(code) != 7;
  if (e.opcode == 0xf6 || e.opcode == 0xf7) return digit_of(code) == 2 || digit_of(code) == 3;
  return e.opcode != 0xff || digit_of(code) < 2;
}

// Does it write over the return address, which lies where the function was entered?
bool overwrites_return(const CodeInstruction& code, const State& before) {
  if (!may_write(code)) return false;
  const auto depth = base_depth(code, before);
  // What lies below it is the red zone.
  const std::int64_t size = code.memory->size != 0 ? std::int64_t{code.memory->size} : kWord;
  return depth && depth->origin == kEntered && depth->bytes > -kWord && depth->bytes < size;
}

// The register whose value the instruction leaves on top of the stack.
std::optional<unsigned> register_on_top(const CodeInstruction& code) {
  if (in_opcodes(code, 0x50, 0x57)) return code.encoding.opcode_register;
  const bool store = is_plain_opcode(code, 0x89) && code.encoding.rex_w && code.memory &&
                     code.memory->base == kRsp && !code.memory->index &&
                     code.memory->displacement == 0 && !code.memory->segment;
  if (store) return code.encoding.reg;
  return std::nullopt;
}

class HeightWalk {
 public:
  HeightWalk(std::span<const CodeInstruction> code, bool entered_by_calls)
      : code_(code), states_(code.size()) {
    flow_to(0, State{entered_by_calls ? Depth{kEntered, 0} : Depth{0, 0}, std::nullopt});
  }

  // Is the return address, where it was at the entry, written over or popped?
  [[nodiscard]] bool changes_return() {
    follow();
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (!states_[i]) continue;
      if (overwrites_return(code_[i], *states_[i])) return true;
      const Depth after = step(code_[i], i, *states_[i]).sp;
      if (after.origin == kEntered && after.bytes < 0) return true;
    }
    return false;
  }

  std::vector<StackJump> run() {
    follow();
    // What only an indirect jump or other code leads to begins at a depth that is not known.
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (states_[i]) continue;
      flow_to(i, State{Depth{i, 0}, std::nullopt});
      follow();
    }
    std::vector<StackJump> jumps;
    const bool overwritten = is_return_overwritten();
    for (std::size_t i = 0; i < code_.size(); ++i) {
      const bool ret = code_[i].kind == InstructionKind::ret;
      if (!ret || !states_[i]) continue;
      const Depth& sp = states_[i]->sp;
      const bool own = sp.origin == kEntered && sp.bytes == 0;
      if (sp.bytes > 0 || (own && overwritten) || follows_a_store(i))
        jumps.push_back({i, i == 0 ? std::nullopt : register_on_top(code_[i - 1]), i - 1});
    }
    return jumps;
  }

 private:
  void follow() {
    while (!open_.empty()) {
      const std::size_t at = open_.back();
      open_.pop_back();
      const CodeInstruction& code = code_[at];
      const State after = step(code, at, *states_[at]);
      if (code.target) {
        State there = after;
        if (calls_near(code)) there.sp.bytes += kWord;
        if (const auto to = index_of(*code.target)) flow_to(*to, there);
      }
      if (!code.ends_block() && at + 1 < code_.size()) flow_to(at + 1, after);
    }
  }

  [[nodiscard]] std::optional<std::size_t> index_of(VirtAddr address) const {
    const auto at = std::ranges::lower_bound(code_, address, {}, &CodeInstruction::address);
    if (at == code_.end() || at->address != address) return std::nullopt;
    return static_cast<std::size_t>(at - code_.begin());
  }

  // Where two ways meet with different depths, the depth counts from there.
  void flow_to(std::size_t at, const State& state) {
    std::optional<State>& here = states_[at];
    State merged = state;
    if (here) {
      if (here->sp != state.sp) merged.sp = Depth{at, 0};
      if (here->bp != state.bp) merged.bp.reset();
      if (merged == *here) return;
    }
    here = merged;
    open_.push_back(at);
  }

  [[nodiscard]] bool is_return_overwritten() const {
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (states_[i] && overwrites_return(code_[i], *states_[i])) return true;
    return false;
  }

  // mov %reg,(%rsp); ret, at whatever depth.
  [[nodiscard]] bool follows_a_store(std::size_t at) const {
    return at != 0 && !pushes(code_[at - 1]) && register_on_top(code_[at - 1]).has_value();
  }

  std::span<const CodeInstruction> code_;
  std::vector<std::optional<State>> states_;  // before each instruction
  std::vector<std::size_t> open_;
};

}  // namespace

std::vector<StackJump> returns_that_jump(std::span<const CodeInstruction> code,
                                         bool entered_by_calls) {
  const bool returns = std::ranges::any_of(
      code, [](const CodeInstruction& c) { return c.kind == InstructionKind::ret; });
  if (!returns) return {};
  return HeightWalk(code, entered_by_calls).run();
}

bool changes_return_address(std::span<const CodeInstruction> code) {
  return HeightWalk(code, true).changes_return();
}

std::optional<JumpThunk> jump_thunk(const CodeRanges& ranges, VirtAddr address) {
  State state{Depth{kEntered, 0}, std::nullopt};
  JumpThunk thunk;
  bool overwritten = false;
  std::int64_t called = 0;  // the depth at which the address behind a call still lies; 0: none
  for (unsigned i = 0; i < kLongestThunk; ++i) {
    const auto code = ranges.decode_at(address);
    if (!code || code->opaque) return std::nullopt;
    if (code->kind == InstructionKind::ret) {
      const bool own = state.sp.origin == kEntered && state.sp.bytes == 0;
      const bool behind_call = called != 0 && state.sp.bytes == called;
      if ((state.sp.bytes > 0 && !behind_call) || (own && overwritten)) return thunk;
      return std::nullopt;
    }
    if (const auto reg = register_on_top(*code)) {
      thunk.reg = reg;
      if (!pushes(*code) && state.sp.bytes == called) called = 0;
    }
    overwritten = overwritten || overwrites_return(*code, state);
    state = step(*code, i, state);
    if (code->kind == InstructionKind::call || code->kind == InstructionKind::jump) {
      if (code->kind == InstructionKind::call) called = state.sp.bytes += kWord;
      if (!code->target) return std::nullopt;
      address = *code->target;
    } else if (code->kind == InstructionKind::other || code->kind == InstructionKind::nop ||
               code->kind == InstructionKind::endbr) {
      address = code->end();
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace reprobe
