#include "libprobe/verify/counter_flow.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

namespace reprobe {
namespace {

constexpr std::size_t kMostFlowSteps = std::size_t{1} << 20;
constexpr std::int64_t kFrameWordBytes = 8;
// System V ABI, x86-64, 3.2.1: what a callee may change; 3.2.3: arguments and results.
constexpr ReadRegisters kLostInCalls = 0x0fc7;  // rax, rcx, rdx, rsi, rdi, r8 to r11
constexpr ReadRegisters kArguments = 0x03c6;    // rcx, rdx, rsi, rdi, r8, r9
constexpr ReadRegisters kResults = 0x0005;      // rax, rdx

// What a register or a word of the frame may hold.
struct Held {
  std::vector<std::uint32_t> origins;  // instructions that took a counter's address, ascending
  bool other{true};                    // something else
  bool from_memory{};

  [[nodiscard]] bool counter() const { return !origins.empty(); }
  bool operator==(const Held&) const = default;
};

// A word at a distance from %rsp or %rbp.
using FrameWord = std::pair<unsigned, std::int64_t>;

struct FlowState {
  std::array<Held, 16> registers;
  std::map<FrameWord, Held> words;  // those that may hold a counter's address
  bool operator==(const FlowState&) const = default;
};

void join_held(Held& to, const Held& from) {
  std::vector<std::uint32_t> all;
  std::ranges::set_union(to.origins, from.origins, std::back_inserter(all));
  to.origins = std::move(all);
  to.other = to.other || from.other;
  to.from_memory = to.from_memory || from.from_memory;
}

bool is_frame_word(const X86Reading& code) {
  const auto& memory = code.memory;
  return memory && memory->bytes != 0 && !memory->index && !memory->segment &&
         !memory->vector_index &&
         (memory->base == kStackPointer || memory->base == kFramePointer);
}

// mov between a 64-bit register and the operand: its register where it is read or written.
std::optional<unsigned> wide_source(const X86Reading& code) {
  return code.operation == Operation::mov && code.operands[1].bits == 64 ? code.register_at(1)
                                                                         : std::nullopt;
}
std::optional<unsigned> wide_destination(const X86Reading& code) {
  return code.operation == Operation::mov && code.operands[0].bits == 64 ? code.register_at(0)
                                                                         : std::nullopt;
}

// The result does not depend on what the register held: xor %r,%r and its like; setcc leaves a part
// of an address.
bool forgets(const X86Reading& code) {
  if (code.operation == Operation::setcc) return code.register_at(0).has_value();
  const bool clears = code.operation == Operation::bit_xor || code.operation == Operation::sub ||
                      code.operation == Operation::sbb;
  return clears && code.register_at(0) && code.register_at(0) == code.register_at(1) &&
         code.operands[0].bits >= 32;
}

class CounterWalk {
 public:
  CounterWalk(const ElfFile& file, const CodeRanges& ranges, const FunctionFlow& flow,
              std::span<const CounterOperand> operands,
              std::span<const std::vector<VirtAddr>> sites)
      : file_(file), ranges_(ranges), flow_(flow), operands_(operands), sites_(sites) {}

  CounterFlow run() {
    told_.resize(operands_.size());
    arrive(flow_.function.start, FlowState{});
    constexpr TargetKinds kFromElsewhere =
        kTargetForeign | kTargetLandingPad | kTargetSymbol | kTargetFde;
    for (const CodeTarget& target : flow_.targets) {
      if ((target.kinds & kFromElsewhere) != 0) arrive(target.address, FlowState{});
    }
    settle();
    // All that may be where is known: what is done with it?
    for (const auto& [at, state] : states_) judge(VirtAddr{at}, state);
    report();
    return std::move(out_);
  }

 private:
  // What is known of one instruction that takes an address.
  struct Told {
    bool checked{}, at_site{}, passed_on{};
    std::map<VirtAddr, const char*> misused;
  };

  void arrive(VirtAddr at, const FlowState& state) {
    const auto [found, is_new] = states_.try_emplace(at.value, state);
    if (!is_new) {
      FlowState joined = found->second;
      for (unsigned reg = 0; reg < 16; ++reg) join_held(joined.registers[reg], state.registers[reg]);
      for (const auto& [word, held] : state.words) {
        const auto [old, added] = joined.words.try_emplace(word, held);
        if (added) old->second.other = true;
        join_held(old->second, held);
      }
      if (joined == found->second) return;
      found->second = std::move(joined);
    }
    open_.insert(at.value);
  }

  void settle() {
    for (std::size_t steps = 0; !open_.empty(); ++steps) {
      if (steps == kMostFlowSteps) {
        too_long_ = true;
        return;
      }
      const VirtAddr at{*open_.begin()};
      open_.erase(open_.begin());
      const auto code = read_x86(file_, at);
      if (code) step(*code, states_.at(at.value));
    }
  }

  [[nodiscard]] bool in_function(VirtAddr at) const {
    return at >= flow_.function.start && at < flow_.end();
  }
  static bool holds_any(const FlowState& state) {
    return !state.words.empty() || std::ranges::any_of(state.registers, &Held::counter);
  }

  void step(const X86Reading& code, FlowState state) {
    apply(code, state);
    // Other code is followed only while it may hold an address.
    const auto go = [&](VirtAddr to) {
      if (in_function(to) || holds_any(state)) arrive(to, state);
    };
    if (code.flow == ReadFlow::indirect_jump) {
      if (!in_function(code.address)) return;
      for (const CodeTarget& target : flow_.targets) {
        if (target.kinds != kTargetSite) go(target.address);
      }
      return;
    }
    if (code.target && code.flow != ReadFlow::call && !is_tail_call(code)) go(*code.target);
    // What follows a call at the function's end is another function: it does not come back.
    const bool last = code.is_call() && in_function(code.address) && !in_function(code.end());
    if (!code.ends_block() && !last) go(code.end());
  }

  [[nodiscard]] bool is_tail_call(const X86Reading& code) const {
    const VirtAddr to = *code.target;
    return !in_function(to) && (ranges_.is_function(to) || ranges_.is_linkage(to));
  }

  // The state behind the instruction.
  void apply(const X86Reading& code, FlowState& state) const {
    const FlowState old = state;
    if (is_frame_word(code) && code.operation != Operation::nop) write_words(code, old, state);
    const ReadRegisters lost = code.is_call() ? kLostInCalls : code.writes;
    move_frame(code, state);
    for (unsigned reg = 0; reg < 16; ++reg) {
      if ((lost >> reg & 1) != 0 && code.operation != Operation::nop) state.registers[reg] = Held{};
    }
    if (const auto to = wide_destination(code); to && *to != kStackPointer) {
      if (const auto from = code.register_at(1)) state.registers[*to] = old.registers[*from];
      if (is_frame_word(code)) {
        const auto word = old.words.find({*code.memory->base, code.memory->displacement});
        if (word != old.words.end()) state.registers[*to] = word->second;
      }
    }
    const auto taken = std::ranges::lower_bound(
        operands_, code.address, {}, [](const CounterOperand& o) { return o.code.address; });
    if (taken == operands_.end() || taken->code.address != code.address) return;
    if (const auto to = code.register_at(0); to && taken->address) {
      const auto index = static_cast<std::uint32_t>(taken - operands_.begin());
      state.registers[*to] = Held{{index}, false, false};
    }
  }

  // A store of the address keeps it; every other one may overwrite a part of a word.
  static void write_words(const X86Reading& code, const FlowState& old, FlowState& state) {
    const FrameWord place{*code.memory->base, code.memory->displacement};
    const std::int64_t size = code.memory->bytes;
    const bool writes = code.operands[0].kind == ReadOperand::Kind::memory &&
                        code.operands[0].written;
    if (!writes) return;
    std::erase_if(state.words, [&](const auto& word) {
      return word.first.first == place.first && word.first.second < place.second + size &&
             place.second < word.first.second + kFrameWordBytes;
    });
    const auto from = wide_source(code);
    if (!from || !old.registers[*from].counter()) return;
    Held kept = old.registers[*from];
    kept.from_memory = true;
    state.words.insert_or_assign(place, std::move(kept));
  }

  // Words count from a register; when that moves by what is not known, they are looked for nowhere
  // else, and judge() says so.
  static void move_frame(const X86Reading& code, FlowState& state) {
    for (const unsigned base : {kStackPointer, kFramePointer}) {
      if (code.is_call() || code.flow == ReadFlow::ret || (code.writes >> base & 1) == 0) continue;
      std::map<FrameWord, Held> moved;
      for (auto& [word, held] : state.words) {
        if (word.first != base) {
          moved.emplace(word, std::move(held));
          continue;
        }
        const auto lower = base == kStackPointer ? lowers_stack(code) : std::nullopt;
        // What lies below the stack pointer was given back.
        if (lower && word.second + *lower >= 0)
          moved.emplace(FrameWord{base, word.second + *lower}, std::move(held));
      }
      state.words = std::move(moved);
    }
  }

  // Bytes by which %rsp is lower then.
  static std::optional<std::int64_t> lowers_stack(const X86Reading& code) {
    if (code.operation == Operation::push) return kFrameWordBytes;
    if (code.operation == Operation::pop) return -kFrameWordBytes;
    if (code.register_at(0) != kStackPointer || code.operands[0].bits != 64) return std::nullopt;
    const auto by = code.immediate();
    if (by && code.operation == Operation::sub) return *by;
    if (by && code.operation == Operation::add) return -*by;
    if (code.operation == Operation::lea && code.memory && code.memory->base == kStackPointer &&
        !code.memory->index) {
      return -code.memory->displacement;
    }
    return std::nullopt;
  }

  void misuse(const Held& held, VirtAddr at, const char* what) {
    for (const std::uint32_t origin : held.origins) told_[origin].misused.emplace(at, what);
  }

  void judge(VirtAddr at, const FlowState& state) {
    if (!holds_any(state)) return;
    const auto code = read_x86(file_, at);
    if (!code) {
      for (const Held& held : state.registers) misuse(held, at, "code that is not understood");
      for (const auto& [word, held] : state.words) misuse(held, at, "code that is not understood");
      return;
    }
    for (unsigned reg = 0; reg < 16; ++reg) {
      const Held& held = state.registers[reg];
      if (held.counter()) judge_register(*code, reg, held);
    }
    if (!state.words.empty()) judge_words(*code, state);
    const bool leaves =
        code->flow == ReadFlow::indirect_jump && (!flow_.complete || !in_function(at));
    for (const Held& held : state.registers) {
      if (leaves) misuse(held, at, "an indirect jump that is not understood");
    }
  }

  void judge_register(const X86Reading& code, unsigned reg, const Held& held) {
    for (const std::uint32_t origin : held.origins) {
      const auto& sites = sites_[operands_[origin].counter];
      told_[origin].at_site |= std::ranges::binary_search(sites, code.address);
    }
    const bool leaves = code.is_call() || code.flow == ReadFlow::ret ||
                        (code.target && code.flow != ReadFlow::call && is_tail_call(code));
    const ReadRegisters passed = code.flow == ReadFlow::ret ? kResults : kArguments;
    if (leaves && (passed >> reg & 1) != 0) {
      for (const std::uint32_t origin : held.origins) told_[origin].passed_on = true;
    }
    if (code.operation == Operation::nop || forgets(code)) return;
    const auto& memory = code.memory;
    const bool through = memory && memory->base == reg && !memory->index && !memory->segment &&
                         !memory->vector_index && memory->displacement == 0 && memory->bytes == 2;
    if (through) return add_check(code, held);
    const auto to = code.register_at(0);
    const bool copies = (to && to != kStackPointer) || is_frame_word(code);
    if (wide_source(code) == reg && copies) return;
    const bool is_operand =
        std::ranges::any_of(code.shown(),
                            [&](const ReadOperand& operand) {
                              return operand.kind == ReadOperand::Kind::registr &&
                                     operand.reg == reg && operand.read;
                            }) ||
        (memory && (memory->base == reg || memory->index == reg));
    const bool reads = code.is_call() || code.flow == ReadFlow::ret
                           ? is_operand
                           : (code.reads >> reg & 1) != 0;
    // In a part that stands elsewhere nothing is known of the other ways there.
    if (reads && !(held.other && in_function(code.address)))
      misuse(held, code.address, "the counter's address is used for more than checks");
  }

  void judge_words(const X86Reading& code, const FlowState& state) {
    for (const auto& [word, held] : state.words) {
      const auto& [base, distance] = word;
      const bool moves = !code.is_call() && code.flow != ReadFlow::ret &&
                         (code.writes >> base & 1) != 0;
      const bool ends = code.operation == Operation::leave ||
                        (code.operation == Operation::pop && base == kFramePointer) ||
                        (base == kStackPointer && code.operation == Operation::mov);
      const bool known = base == kStackPointer && lowers_stack(code);
      if (moves && !ends && !known)
        misuse(held, code.address, "the counter's address is kept in memory");
    }
  }

  void add_check(const X86Reading& code, const Held& held) {
    if (held.from_memory)
      return misuse(held, code.address, "a check through an address kept in memory");
    if (!in_function(code.address))
      return misuse(held, code.address, "a check in a part of the function that stands elsewhere");
    PointerCheck check{code, {}, held.other || !flow_.complete};
    for (const std::uint32_t origin : held.origins) {
      told_[origin].checked = true;
      check.counters.push_back(operands_[origin].counter);
    }
    std::ranges::sort(check.counters);
    const auto same = std::ranges::unique(check.counters);
    check.counters.erase(same.begin(), same.end());
    out_.checks.push_back(std::move(check));
  }

  void report() {
    for (std::size_t i = 0; i < told_.size(); ++i) {
      const CounterOperand& operand = operands_[i];
      if (!operand.address) continue;
      const Told& told = told_[i];
      for (const auto& [at, what] : told.misused)
        out_.unknown.push_back({operand.counter, at, what});
      if (told.checked) out_.origins.push_back(operand.code.address);
      if (too_long_)
        out_.unknown.push_back({operand.counter, operand.code.address, "too long to be followed"});
      if (told.passed_on && !told.checked && !told.at_site)
        out_.unknown.push_back(
            {operand.counter, operand.code.address, "the counter's address is passed on"});
    }
  }

  const ElfFile& file_;
  const CodeRanges& ranges_;
  const FunctionFlow& flow_;
  std::span<const CounterOperand> operands_;
  std::span<const std::vector<VirtAddr>> sites_;
  std::map<std::uint64_t, FlowState> states_;  // before the instruction there
  std::set<std::uint64_t> open_;
  std::vector<Told> told_;  // of each operand
  bool too_long_{};
  CounterFlow out_;
};

}  // namespace

CounterFlow follow_counters(const ElfFile& file, const CodeRanges& ranges, const FunctionFlow& flow,
                            std::span<const CounterOperand> operands,
                            std::span<const std::vector<VirtAddr>> sites) {
  return CounterWalk(file, ranges, flow, operands, sites).run();
}

}  // namespace reprobe
