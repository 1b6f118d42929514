#include "libprobe/rewrite/guards/frame_words.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kMostInstructions = 200'000;
constexpr std::int64_t kStackWord = 8;
constexpr RegisterSet kRspBit = 1U << kRsp, kRbpBit = 1U << kRbp;

bool is_one_byte(const CodeInstruction& code, unsigned opcode) {
  return code.encoding.map == OpcodeMap::one_byte && code.encoding.opcode == opcode;
}

bool is_wide_copy(const CodeInstruction& code, unsigned to, unsigned from) {
  const X86Encoding& e = code.encoding;
  if (!e.rex_w || !e.has_modrm() || e.mod != 3) return false;
  return (is_one_byte(code, 0x89) && e.rm == to && e.reg == from) ||
         (is_one_byte(code, 0x8b) && e.reg == to && e.rm == from);
}

bool is_leave(const CodeInstruction& code) { return is_one_byte(code, 0xc9); }

// lea n(%base),%to
bool is_frame_lea(const CodeInstruction& code, unsigned to) {
  return code.is_lea() && code.encoding.rex_w && code.encoding.reg == to && code.memory &&
         !code.memory->index && (code.memory->base == kRsp || code.memory->base == kRbp);
}

// Is ModRM.reg part of the opcode, or a vector register (Intel SDM volume 2, appendix A)?
bool has_no_register(const X86Encoding& e) {
  const unsigned row = e.opcode & 0xf0U;
  if (e.map == OpcodeMap::vector) return true;
  if (e.map == OpcodeMap::map_0f)
    return (e.opcode >= 0x10 && e.opcode <= 0x17) || (e.opcode >= 0x28 && e.opcode <= 0x2f) ||
           (row >= 0x50 && row <= 0x70) || row >= 0xd0;
  if (e.map != OpcodeMap::one_byte) return false;
  return row == 0xd0 || (e.opcode >= 0x80 && e.opcode <= 0x83) || e.opcode == 0xc0 ||
         e.opcode == 0xc1 || e.opcode == 0xc6 || e.opcode == 0xc7 || e.opcode == 0xf6 ||
         e.opcode == 0xf7 || e.opcode >= 0xfe;
}

}  // namespace

bool is_push(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  const bool immediate = e.opcode == 0x68 || e.opcode == 0x6a;
  const bool memory = e.opcode == 0xff && (e.reg & 7) == 6;
  return e.map == OpcodeMap::one_byte && !e.operand16 &&
         (immediate || memory || (e.opcode >= 0x50 && e.opcode <= 0x57));
}

bool is_pop(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  return e.map == OpcodeMap::one_byte && !e.operand16 && e.opcode >= 0x58 && e.opcode <= 0x5f;
}

std::optional<std::int64_t> lowers_stack(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (is_push(code)) return kStackWord;
  if (is_pop(code)) return -kStackWord;
  if (is_frame_lea(code, kRsp) && code.memory->base == kRsp) return -code.memory->displacement;
  const bool group1 = e.map == OpcodeMap::one_byte && (e.opcode == 0x81 || e.opcode == 0x83) &&
                      e.mod == 3 && e.rm == kRsp;
  if (!group1 || !e.rex_w || !code.immediate) return std::nullopt;
  if ((e.reg & 7) == 5) return *code.immediate;
  if ((e.reg & 7) == 0) return -*code.immediate;
  return std::nullopt;
}

FrameWords::FrameWords(const CodeRanges& ranges, const FunctionFlow& flow, Callees& callees)
    : ranges_(ranges), flow_(flow), callees_(callees) {
  constexpr TargetKinds kFromElsewhere =
      kTargetForeign | kTargetLandingPad | kTargetSymbol | kTargetFde;
  arrive(flow.function.start, {FrameWord{}, std::nullopt});
  for (const CodeTarget& target : flow.targets) {
    if ((target.kinds & kFromElsewhere) != 0 && target.address != flow.function.start)
      arrive(target.address, {});
  }
  if (!flow.complete) shared_ = "control flow that is not understood";
  while (!open_.empty()) {
    const VirtAddr at = open_.back();
    open_.pop_back();
    const auto code = decode(at);
    if (!code || code->opaque || states_.size() > kMostInstructions) {
      shared_ = "code that is not understood";
      continue;
    }
    const State before = states_[at.value];
    look_for_sharing(*code, before);
    step(*code, before);
  }
}

std::optional<CodeInstruction> FrameWords::decode(VirtAddr at) const {
  if (const CodeInstruction* code = flow_.at(at)) return *code;
  return ranges_.decode_at(at);
}

void FrameWords::arrive(VirtAddr at, const State& state) {
  const auto [it, is_new] = states_.try_emplace(at.value, state);
  State& known = it->second;
  const State old = known;
  if (known.rsp != state.rsp) known.rsp.reset();
  if (known.rbp != state.rbp) known.rbp.reset();
  if (is_new || known != old) open_.push_back(at);
}

void FrameWords::step(const CodeInstruction& code, const State& before) {
  const State now = after(code, before);
  if (code.kind == InstructionKind::indirect_jump) {
    for (const CodeTarget& target : flow_.targets) {
      if ((target.kinds & ~(kTargetBranch | kTargetSite | kTargetEntry)) != 0 &&
          flow_.at(target.address) != nullptr)
        arrive(target.address, now);
    }
  }
  if (code.target && !is_any_call(code)) {
    const VirtAddr to = *code.target;
    const bool inside = to >= flow_.function.start && to < flow_.end();
    if (inside || (!ranges_.is_function(to) && !ranges_.is_linkage(to))) arrive(to, now);
  }
  const bool stops = code.ends_block() || (is_any_call(code) && !callees_.effect(code).returns);
  if (!stops) arrive(code.end(), now);
}

FrameWords::State FrameWords::after(const CodeInstruction& code, State state) const {
  if (is_any_call(code) || code.kind == InstructionKind::nop) return state;
  const State before = state;
  const auto from_lea = [&]() -> std::optional<FrameWord> {
    const auto& base = code.memory->base == kRsp ? before.rsp : before.rbp;
    if (!base) return std::nullopt;
    return FrameWord{base->base, base->offset + code.memory->displacement};
  };
  if ((code.writes & kRspBit) != 0) {
    const auto lowered = lowers_stack(code);
    if (lowered && before.rsp) {
      state.rsp->offset -= *lowered;
    } else if (is_wide_copy(code, kRsp, kRbp)) {
      state.rsp = before.rbp;
    } else if (is_leave(code) && before.rbp) {
      state.rsp = FrameWord{before.rbp->base, before.rbp->offset + kStackWord};
    } else if (is_frame_lea(code, kRsp)) {
      state.rsp = from_lea();
    } else if (!lowered) {
      state.rsp = FrameWord{code.address.value, 0};
    }
  }
  if ((code.writes & kRbpBit) != 0) {
    state.rbp.reset();
    if (is_wide_copy(code, kRbp, kRsp)) state.rbp = before.rsp;
    if (is_frame_lea(code, kRbp)) state.rbp = from_lea();
  }
  return state;
}

void FrameWords::look_for_sharing(const CodeInstruction& code, const State& before) {
  had_frame_pointer_ = had_frame_pointer_ || before.rbp.has_value();
  if (code.kind == InstructionKind::nop || code.kind == InstructionKind::ret) return;
  const auto share = [&](const char* why) {
    if (shared_.empty()) shared_ = why;
  };
  RegisterSet frame = kRspBit;
  if (before.rbp) frame |= kRbpBit;
  if (const auto& memory = code.memory) {
    const bool by_rsp = memory->base == kRsp, by_rbp = memory->base == kRbp;
    const bool indexes = memory->index && (*memory->index == kRbp && before.rbp);
    if (((by_rsp || (by_rbp && before.rbp)) && memory->index) || indexes)
      return share("words of the frame are reached by an index");
    if ((by_rsp && !before.rsp) || (by_rbp && !before.rbp && had_frame_pointer_))
      return share("the frame is not understood");
    if (by_rsp && before.rsp->base != 0 && before.rbp)
      return share("the frame has a part of variable size");
  }
  // What computes %rsp and %rbp from each other is followed; a copy elsewhere is not.
  if (is_push(code) && code.encoding.opcode == 0x50 + kRbp && before.rbp)
    return share("an address of the frame is taken");
  if (is_any_call(code) || is_push(code) || is_pop(code) || is_leave(code) || lowers_stack(code))
    return;
  const X86Encoding& e = code.encoding;
  const auto is_frame_register = [&](unsigned reg) { return reg < 16 && (frame >> reg & 1) != 0; };
  if (code.is_lea()) {
    const bool counts = code.memory && code.memory->base && is_frame_register(*code.memory->base);
    if (counts && e.reg != kRsp && e.reg != kRbp) share("an address of the frame is taken");
    return;
  }
  if (is_wide_copy(code, kRsp, kRbp) || is_wide_copy(code, kRbp, kRsp)) return;
  const bool realigns = e.map == OpcodeMap::one_byte && (e.opcode == 0x81 || e.opcode == 0x83) &&
                        e.mod == 3 && e.rm == kRsp;
  if (realigns) return;
  // Everything else may use a frame register for its operand's address alone.
  RegisterSet used = code.reads;
  const bool base_only = code.memory && code.memory->base &&
                         is_frame_register(*code.memory->base) &&
                         (has_no_register(e) || e.reg != *code.memory->base);
  if (base_only) used &= ~(1U << *code.memory->base);
  if ((used & frame) != 0) share("an address of the frame is taken");
}

std::optional<FrameWord> FrameWords::operand(const CodeInstruction& code) const {
  const auto state = states_.find(code.address.value);
  if (state == states_.end() || !code.memory || code.memory->index || code.memory->segment)
    return std::nullopt;
  std::optional<FrameWord> word;
  if (code.memory->base == kRsp) word = state->second.rsp;
  if (code.memory->base == kRbp) word = state->second.rbp;
  if (word) word->offset += code.memory->displacement;
  return word;
}

std::optional<FrameWord> FrameWords::stack_pointer(VirtAddr at) const {
  const auto state = states_.find(at.value);
  return state == states_.end() ? std::nullopt : state->second.rsp;
}

}  // namespace reprobe
