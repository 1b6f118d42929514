#include "libprobe/rewrite/guards/address_walk.hpp"

#include <algorithm>
#include <compare>
#include <map>
#include <set>

#include "libprobe/rewrite/guards/address_places.hpp"
#include "libprobe/rewrite/guards/check_forms.hpp"

namespace reprobe {
namespace {

// Of one address.
constexpr std::size_t kMostSteps = 65536;
constexpr std::int64_t kRedZone = 128;  // System V ABI, x86-64, 3.2.2

bool has(RegisterSet set, unsigned reg) { return (set >> reg & 1) != 0; }

// The result does not depend on the register: xor %r,%r and its like, and setcc, after which a part
// of an address is left.
bool forgets(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (e.map == OpcodeMap::map_0f && e.mod == 3 && (e.opcode & 0xf0) == 0x90) return true;
  const bool same = e.has_modrm() && e.mod == 3 && e.rm == e.reg && !e.operand16;
  const unsigned operation = e.opcode & ~2U;  // to or from the operand
  return same && e.map == OpcodeMap::one_byte &&
         (operation == 0x31 || operation == 0x29 || operation == 0x19);  // xor, sub, sbb
}

bool is_operand(const CodeInstruction& code, unsigned reg) {
  const X86Encoding& e = code.encoding;
  if (code.memory && (code.memory->base == reg || code.memory->index == reg)) return true;
  return e.has_modrm() && e.mod == 3 && e.rm == reg;
}

// Of a call; in the large code model it goes through a register that holds the callee's address.
CallEffect effect_of(const AddressCode& code, const CodeInstruction& call) {
  const auto at =
      std::ranges::lower_bound(code.flow.code, call.address, {}, &CodeInstruction::address);
  const bool through_register =
      call.kind == InstructionKind::indirect_call && call.encoding.mod == 3;
  const bool here = at != code.flow.code.end() && at->address == call.address;
  if (!through_register || !here || !code.flow.complete) return code.callees.effect(call);
  const auto origins =
      code.finder.origins(static_cast<std::size_t>(at - code.flow.code.begin()), call.encoding.rm);
  const bool known = origins.size() == 1 && origins[0].kind == ValueOrigin::Kind::constant;
  return known ? code.callees.effect_at(origins[0].address) : code.callees.effect(call);
}

class AddressWalk {
 public:
  AddressWalk(const AddressCode& code, std::span<const VirtAddr> sites, bool distance)
      : code_(code), sites_(sites), distance_(distance), results_(results_of(code.flow)) {
    for (const CodeTarget& target : code.flow.targets)
      if ((target.kinds & kTargetLandingPad) != 0) pads_.push_back(target.address);
  }

  AddressUses run(VirtAddr from, unsigned reg) {
    go_to(from, {false, reg, {}}, true);
    while (!open_.empty() && out_.reason.empty()) {
      const Held held = open_.back();
      open_.pop_back();
      if (code_.budget == 0 || seen_.size() > kMostSteps) {
        stop(held.at, "the counter's address lives too long");
        break;
      }
      --code_.budget;
      const auto code = decode(held.at);
      if (!code || code->opaque) {
        stop(held.at, "code that is not understood");
      } else if (held.place.in_frame) {
        step_word(*code, held);
      } else {
        step_register(*code, held);
      }
    }
    for (const auto& [word, at] : words_at_calls_)
      if (!reloaded_.contains(word)) pass_on(at);  // an argument on the stack
    return std::move(out_);
  }

 private:
  struct Held {
    VirtAddr at;  // before this instruction
    AddressPlace place;
    bool certain{};  // it is there; else it may be: a call may have overwritten it
    auto operator<=>(const Held&) const = default;
  };

  void go_to(VirtAddr at, const AddressPlace& place, bool certain) {
    if (!seen_.insert({at, place, certain}).second) return;
    open_.push_back({at, place, certain});
    // An exception may leave every place where the address is.
    const bool survives = place.in_frame || has(kCalleeSaved, place.reg);
    if (!survives || !thrown_.insert(place).second) return;
    for (const VirtAddr pad : pads_) go_to(pad, place, certain);
  }
  void stop(VirtAddr at, std::string reason) {
    out_.reason = std::move(reason);
    out_.at = at;
  }
  void pass_on(VirtAddr at) {
    if (out_.passed_at.value == 0) out_.passed_at = at;
  }

  [[nodiscard]] bool in_function(VirtAddr at) const {
    return at >= code_.flow.function.start && at < code_.flow.end();
  }
  [[nodiscard]] std::optional<CodeInstruction> decode(VirtAddr at) const {
    if (const CodeInstruction* code = code_.flow.at(at)) return *code;
    return code_.ranges.decode_at(at);
  }

  void step_register(const CodeInstruction& code, const Held& held) {
    const unsigned reg = held.place.reg;
    out_.at_site |= held.certain && std::ranges::binary_search(sites_, code.address);
    if (code.kind == InstructionKind::nop) return follow(code, held);
    if (is_any_call(code)) return step_call(code, held);
    if (code.kind == InstructionKind::ret) {
      if (!held.certain || !has(results_, reg)) return;
      if (reg != kRdx) return pass_on(code.address);
      if (out_.left_at.value == 0) out_.left_at = code.address;
      return;
    }
    const auto move = address_move(code, code_.frame);
    if (is_check_through(code, reg, distance_)) {
      if (!held.certain)
        return stop(code.address, "a check through a register that a call may have overwritten");
      add_check(code);
    } else if (move && move->from == held.place) {
      const bool hidden = move->to.in_frame && !code_.frame.shared().empty() && !is_push(code);
      if (hidden && held.certain)
        return stop(code.address, "kept in memory: " + code_.frame.shared());
      if (!hidden) go_to(code.end(), move->to, held.certain);
    } else if (held.certain && !forgets(code) && has(code.reads, reg)) {
      return stop(code.address, "the counter's address is used for more than checks");
    }
    if (!has(code.writes, reg)) follow(code, held);
  }

  void step_call(const CodeInstruction& code, Held held) {
    const unsigned reg = held.place.reg;
    if (held.certain && is_operand(code, reg))
      return stop(code.address, "the counter's address is used for more than checks");
    const CallEffect effect = effect_of(code_, code);
    if (held.certain && has(effect.read, reg)) pass_on(code.address);
    if (has(effect.written, reg)) held.certain = false;
    if (effect.returns) follow(code, held);
  }

  void add_check(const CodeInstruction& code) {
    if (!in_function(code.address))
      return stop(code.address, "a check in a part of the function that stands elsewhere");
    if (std::ranges::find(out_.checks, code.address) == out_.checks.end())
      out_.checks.push_back(code.address);
  }

  // A word of the frame, of which nobody else knows where it is.
  void step_word(const CodeInstruction& code, const Held& held) {
    if (code.kind == InstructionKind::ret) return;
    const FrameWord& word = held.place.word;
    const auto move = address_move(code, code_.frame);
    if (move && move->from == held.place) {
      reloaded_.insert(word);
      go_to(code.end(), move->to, held.certain);
    } else if (touches_word(code, code_.frame, word)) {
      const bool by_stack = !code.memory && (is_any_call(code) || is_push(code));
      const bool overwrites = by_stack || (move && move->to == held.place) ||
                              (is_full_store(code) && code_.frame.operand(code) == word);
      if (!overwrites) stop(code.address, "the word that keeps the counter's address is used");
      return;
    }
    const auto top = code_.frame.stack_pointer(code.address);
    if (top && top->base == word.base && is_given_back(code, word, *top)) return;
    if (is_any_call(code)) {
      if (held.certain) words_at_calls_.try_emplace(word, code.address);
      if (code_.callees.returns_twice(code))
        return stop(code.address, "the counter's address is kept in memory over a setjmp");
      if (!effect_of(code_, code).returns) return;
    }
    follow(code, held);
  }

  // Below the red zone, or below %rsp at a call, whose callee writes there.
  static bool is_given_back(const CodeInstruction& code, const FrameWord& word,
                            const FrameWord& top) {
    return word.offset < top.offset - (is_any_call(code) ? 0 : kRedZone);
  }

  // mov $imm,word of 8 bytes.
  static bool is_full_store(const CodeInstruction& code) {
    const X86Encoding& e = code.encoding;
    return e.map == OpcodeMap::one_byte && e.opcode == 0xc7 && e.rex_w;
  }

  void follow(const CodeInstruction& code, const Held& held) {
    if (code.kind == InstructionKind::indirect_jump) return leave_indirectly(code, held);
    if (code.target && code.kind != InstructionKind::call) {
      const VirtAddr to = *code.target;
      const bool tail_call =
          !in_function(to) && (code_.ranges.is_function(to) || code_.ranges.is_linkage(to));
      if (!tail_call) {
        go_to(to, held.place, held.certain);
      } else if (!held.place.in_frame && held.certain) {
        if (has(code_.callees.passed_by_jump(to, results_), held.place.reg)) pass_on(code.address);
      }
    }
    // What follows a call at the function's end is another function: it does not come back.
    const bool ends = is_any_call(code) && in_function(code.address) && !in_function(code.end());
    if (!code.ends_block() && !ends) go_to(code.end(), held.place, held.certain);
  }

  // It goes to a target of the function, or it is a tail call.
  void leave_indirectly(const CodeInstruction& jump, const Held& held) {
    if (!code_.flow.complete || !in_function(jump.address))
      return stop(jump.address, "an indirect jump that is not understood");
    constexpr TargetKinds kByJump =
        ~(kTargetBranch | kTargetSite | kTargetEntry | kTargetLandingPad | kTargetForeign);
    for (const CodeTarget& target : code_.flow.targets) {
      if ((target.kinds & kByJump) != 0 && code_.flow.at(target.address) != nullptr)
        go_to(target.address, held.place, held.certain);
    }
    if (!held.place.in_frame && held.certain &&
        has(code_.callees.effect(jump).read | results_, held.place.reg) && is_tail_call(jump))
      pass_on(jump.address);
  }
  // A jump through a table stays in the function: some target of it is one of a table's.
  [[nodiscard]] bool is_tail_call(const CodeInstruction& jump) const {
    const auto top = code_.frame.stack_pointer(jump.address);
    return !top || (top->base == 0 && top->offset == 0);
  }

  const AddressCode& code_;
  std::span<const VirtAddr> sites_;
  bool distance_;
  std::vector<VirtAddr> pads_;
  std::vector<Held> open_;
  std::set<Held> seen_;
  std::set<AddressPlace> thrown_;
  std::map<FrameWord, VirtAddr> words_at_calls_;
  std::set<FrameWord> reloaded_;
  RegisterSet results_;
  AddressUses out_;
};

class OriginProof {
 public:
  OriginProof(const AddressCode& code, const RightOrigin& right) : code_(code), right_(right) {}

  bool run(VirtAddr at, unsigned reg) {
    const auto start = std::ranges::lower_bound(code_.flow.code, at, {}, &CodeInstruction::address);
    want(static_cast<std::size_t>(start - code_.flow.code.begin()), {false, reg, {}});
    while (!open_.empty()) {
      const Wanted wanted = open_.back();
      open_.pop_back();
      const auto from = code_.finder.predecessors(wanted.at, kMostPredecessors);
      if (!from || wanted.at == 0 || seen_.size() > kMostSteps) return false;
      for (const std::size_t p : *from) {
        if (code_.budget == 0 || !step(p, wanted.place)) return false;
        --code_.budget;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kMostPredecessors = 4096;

  struct Wanted {
    std::size_t at{};  // before this instruction, by index
    AddressPlace place;
    auto operator<=>(const Wanted&) const = default;
  };

  void want(std::size_t at, const AddressPlace& place) {
    if (seen_.insert({at, place}).second) open_.push_back({at, place});
  }

  [[nodiscard]] bool survives_call(const CodeInstruction& call, const FrameWord& word) const {
    const auto top = code_.frame.stack_pointer(call.address);
    const bool below = top && top->base == word.base && word.offset < top->offset;
    return !below && !touches_word(call, code_.frame, word);
  }

  // False where the instruction puts something else there.
  bool step(std::size_t p, const AddressPlace& place) {
    const CodeInstruction& code = code_.flow.code[p];
    if (code.opaque) return false;
    if (is_any_call(code)) {
      const CallEffect effect = effect_of(code_, code);
      if (!effect.returns) return true;
      const bool kept = place.in_frame ? survives_call(code, place.word)
                                       : !has(effect.written, place.reg) &&
                                             (effect.complete || has(kCalleeSaved, place.reg));
      if (kept) want(p, place);
      return kept;
    }
    const auto move = address_move(code, code_.frame);
    if (move && move->to == place) {
      if (move->from.in_frame && !code_.frame.shared().empty()) return false;
      want(p, move->from);
      return true;
    }
    if (place.in_frame && touches_word(code, code_.frame, place.word)) {
      if (!move || move->from != place) return false;
    } else if (!place.in_frame && has(code.writes, place.reg) &&
               code.kind != InstructionKind::nop) {
      return right_(p, place.reg);
    }
    want(p, place);
    return true;
  }

  const AddressCode& code_;
  const RightOrigin& right_;
  std::vector<Wanted> open_;
  std::set<Wanted> seen_;
};

}  // namespace

bool is_check_through(const CodeInstruction& code, unsigned reg, bool distance) {
  const auto& memory = code.memory;
  if (!memory || !memory->base || memory->displacement != 0 || !check_form(code)) return false;
  if (!distance) return memory->base == reg && !memory->index;
  return memory->index && memory->scale == 1 && memory->index != memory->base &&
         (memory->base == reg || memory->index == reg);
}

AddressUses follow_address(const AddressCode& code, const CodeInstruction& origin, unsigned reg,
                           std::span<const VirtAddr> sites, bool distance) {
  return AddressWalk(code, sites, distance).run(origin.end(), reg);
}

bool comes_from(const AddressCode& code, VirtAddr at, unsigned reg, const RightOrigin& right) {
  return OriginProof(code, right).run(at, reg);
}

}  // namespace reprobe
