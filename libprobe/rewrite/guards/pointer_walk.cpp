#include "libprobe/rewrite/guards/pointer_walk.hpp"

#include <algorithm>
#include <compare>
#include <set>

#include "libprobe/rewrite/guards/check_forms.hpp"

namespace reprobe {
namespace {

// Of one address.
constexpr std::size_t kMostSteps = 65536;
constexpr unsigned kRbx = 3, kR12 = 12;
constexpr std::int64_t kWord = 8;

// Registers that a callee gives back as they were (System V ABI, x86-64, 3.2.1).
constexpr bool survives_calls(unsigned reg) { return reg == kRbx || reg == kRbp || reg >= kR12; }

// 3.2.3: %rdi, %rsi, %rdx, %rcx, %r8, %r9; %rax, %rdx.
constexpr bool may_be_argument(unsigned reg) {
  return reg == kRcx || reg == kRdx || (reg >= 6 && reg <= 9);
}
constexpr bool may_be_result(unsigned reg) { return reg == kRax || reg == kRdx; }

// Where the address is: a register, or a word of the frame at a distance from %rsp or %rbp.
struct Place {
  bool in_memory{};
  unsigned reg{};  // that holds it, or that the word's address counts from
  std::int64_t distance{};
  bool reloaded{};  // from memory
  auto operator<=>(const Place&) const = default;
};

bool is_call(const CodeInstruction& code) {
  return code.kind == InstructionKind::call || code.kind == InstructionKind::indirect_call;
}

// A 64-bit mov; `opcode` 89 writes the operand, 8b reads it.
bool is_wide_mov(const CodeInstruction& code, unsigned opcode) {
  const X86Encoding& e = code.encoding;
  return e.map == OpcodeMap::one_byte && e.opcode == opcode && e.rex_w && e.has_modrm();
}

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

// Is it a read of two bytes through the register, which it uses for nothing else?
bool is_check_through(const CodeInstruction& code, unsigned reg) {
  return code.memory && code.memory->base == reg && !code.memory->index &&
         code.memory->displacement == 0 && check_form(code);
}

class PointerWalk {
 public:
  PointerWalk(const CodeRanges& ranges, const FunctionFlow& flow, const PointerQuestion& question)
      : ranges_(ranges), flow_(flow), question_(question) {}

  PointerUses run() {
    go_to(question_.origin->end(), {false, question_.reg, 0, false});
    while (!open_.empty() && out_.reason.empty()) {
      const Held held = open_.back();
      open_.pop_back();
      const auto code = decode(held.at);
      if (*question_.budget == 0 || seen_.size() > kMostSteps) {
        stop(held.at, "the counter's address lives too long");
        break;
      }
      --*question_.budget;
      if (!code || code->opaque) {
        stop(held.at, "code that is not understood");
      } else if (held.place.in_memory) {
        step_word(*code, held.place);
      } else {
        step_register(*code, held.place);
      }
    }
    return std::move(out_);
  }

 private:
  struct Held {
    VirtAddr at;  // before this instruction
    Place place;
    auto operator<=>(const Held&) const = default;
  };

  void go_to(VirtAddr at, const Place& place) {
    if (seen_.insert({at, place}).second) open_.push_back({at, place});
  }
  void stop(VirtAddr at, std::string reason) {
    out_.reason = std::move(reason);
    out_.at = at;
  }

  [[nodiscard]] bool in_function(VirtAddr at) const {
    return at >= flow_.function.start && at < flow_.end();
  }
  [[nodiscard]] std::optional<CodeInstruction> decode(VirtAddr at) const {
    if (const CodeInstruction* code = flow_.at(at)) return *code;
    return ranges_.decode_at(at);
  }

  void step_register(const CodeInstruction& code, const Place& place) {
    out_.at_site |= std::ranges::binary_search(question_.sites, code.address);
    // Calls and returns read what the ABI says; only an operand of their own counts.
    const bool leaves = is_call(code) || code.kind == InstructionKind::ret;
    const bool nop = code.kind == InstructionKind::nop;
    if (is_check_through(code, place.reg)) {
      add_check(code, place);
    } else if (const auto copy = copied_to(code, place)) {
      go_to(code.end(), *copy);
    } else if (!nop && !forgets(code) &&
               (leaves ? is_operand(code, place.reg) : reads(code, place.reg))) {
      if (!in_function(code.address) || !question_.may_hold_another(code, place.reg))
        stop(code.address, "the counter's address is used for more than checks");
      return;
    }
    if (leaves && (is_call(code) ? may_be_argument(place.reg) : may_be_result(place.reg)))
      out_.passed_on = true;
    if (is_call(code) && !survives_calls(place.reg)) return;
    if (!is_call(code) && !nop && writes(code, place.reg)) return;
    follow(code, place);
  }

  static bool reads(const CodeInstruction& code, unsigned reg) {
    return (code.reads & (1U << reg)) != 0;
  }
  static bool writes(const CodeInstruction& code, unsigned reg) {
    return (code.writes & (1U << reg)) != 0;
  }
  static bool is_operand(const CodeInstruction& code, unsigned reg) {
    const X86Encoding& e = code.encoding;
    if (code.memory && (code.memory->base == reg || code.memory->index == reg)) return true;
    return e.has_modrm() && e.mod == 3 && e.rm == reg;
  }

  void add_check(const CodeInstruction& code, const Place& place) {
    if (place.reloaded) return stop(code.address, "a check through an address kept in memory");
    if (!in_function(code.address))
      return stop(code.address, "a check in a part of the function that stands elsewhere");
    if (std::ranges::find(out_.checks, code.address) == out_.checks.end())
      out_.checks.push_back(code.address);
  }

  // Where mov of the whole register puts it.
  static std::optional<Place> copied_to(const CodeInstruction& code, const Place& place) {
    const X86Encoding& e = code.encoding;
    if (is_wide_mov(code, 0x89) && e.reg == place.reg) {
      if (e.mod == 3 && e.rm != kRsp) return Place{false, e.rm, 0, place.reloaded};
      if (is_frame_word(code)) return word_of(code);
    }
    if (is_wide_mov(code, 0x8b) && e.mod == 3 && e.rm == place.reg && e.reg != kRsp)
      return Place{false, e.reg, 0, place.reloaded};
    return std::nullopt;
  }

  static bool is_frame_word(const CodeInstruction& code) {
    return code.memory && !code.memory->index && !code.memory->segment &&
           (code.memory->base == kRsp || code.memory->base == kRbp);
  }
  static Place word_of(const CodeInstruction& code) {
    return {true, *code.memory->base, code.memory->displacement, true};
  }

  // A word of the frame: nobody else knows where it is.
  void step_word(const CodeInstruction& code, const Place& place) {
    const bool leaves = code.kind == InstructionKind::ret;
    if (leaves) return;
    const std::int64_t size =
        code.memory && code.memory->size != 0 ? std::int64_t{code.memory->size} : kWord;
    const bool touches = code.kind != InstructionKind::nop && !code.is_lea() &&
                         is_frame_word(code) && code.memory->base == place.reg &&
                         code.memory->displacement < place.distance + kWord &&
                         place.distance < code.memory->displacement + size;
    if (touches) {
      const bool load = code.memory->displacement == place.distance && is_wide_mov(code, 0x8b);
      // Everything else overwrites the word, or reads what another path has put there: an address
      // is loaded before it is used.
      if (!load) return;
      go_to(code.end(), {false, code.encoding.reg, 0, true});
    }
    // Calls give both back.
    if (!is_call(code) && writes(code, place.reg)) return move_frame(code, place);
    follow(code, place);
  }

  // The register that the word's address counts from changes.
  void move_frame(const CodeInstruction& code, const Place& place) {
    const auto lowered = place.reg == kRsp ? lowers_stack(code) : std::nullopt;
    if (!lowered) {
      // leave, pop %rbp, mov %rbp,%rsp: the frame is gone.
      const bool ends =
          code.encoding.map == OpcodeMap::one_byte &&
          (code.encoding.opcode == 0xc9 || code.encoding.opcode == 0x5d || is_wide_mov(code, 0x89));
      if (!ends) stop(code.address, "the counter's address is kept in memory");
      return;
    }
    Place moved = place;
    moved.distance += *lowered;
    if (moved.distance >= 0) follow(code, moved);  // else its memory was given back
  }

  // push, pop, sub $n,%rsp, add $n,%rsp: bytes by which %rsp is lower then.
  static std::optional<std::int64_t> lowers_stack(const CodeInstruction& code) {
    const X86Encoding& e = code.encoding;
    if (e.map != OpcodeMap::one_byte || e.operand16) return std::nullopt;
    const bool push =
        e.opcode == 0x68 || e.opcode == 0x6a || (e.opcode >= 0x50 && e.opcode <= 0x57);
    if (push) return kWord;
    if (e.opcode >= 0x58 && e.opcode <= 0x5f) return -kWord;
    const bool group1 = (e.opcode == 0x81 || e.opcode == 0x83) && e.mod == 3 && e.rm == kRsp;
    if (!group1 || !e.rex_w || !code.immediate) return std::nullopt;
    if ((e.reg & 7) == 5) return *code.immediate;
    if ((e.reg & 7) == 0) return -*code.immediate;
    return std::nullopt;
  }

  void follow(const CodeInstruction& code, const Place& place) {
    if (code.kind == InstructionKind::indirect_jump) return leave_indirectly(code, place);
    if (code.target && code.kind != InstructionKind::call) {
      const VirtAddr to = *code.target;
      const bool tail_call =
          !in_function(to) && (ranges_.is_function(to) || ranges_.is_linkage(to));
      if (tail_call) {
        out_.passed_on |= !place.in_memory && may_be_argument(place.reg);
      } else {
        go_to(to, place);
      }
    }
    // What follows a call at the function's end is another function: it does not come back.
    const bool ends = is_call(code) && in_function(code.address) && !in_function(code.end());
    if (!code.ends_block() && !ends) go_to(code.end(), place);
  }

  void leave_indirectly(const CodeInstruction& jump, const Place& place) {
    if (!flow_.complete || !in_function(jump.address))
      return stop(jump.address, "an indirect jump that is not understood");
    for (const CodeTarget& target : flow_.targets) {
      if (flow_.at(target.address) != nullptr) go_to(target.address, place);
    }
  }

  const CodeRanges& ranges_;
  const FunctionFlow& flow_;
  const PointerQuestion& question_;
  std::vector<Held> open_;
  std::set<Held> seen_;
  PointerUses out_;
};

}  // namespace

PointerUses follow_pointer(const CodeRanges& ranges, const FunctionFlow& flow,
                           const PointerQuestion& question) {
  return PointerWalk(ranges, flow, question).run();
}

}  // namespace reprobe
