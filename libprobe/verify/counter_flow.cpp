#include "libprobe/verify/counter_flow.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "libprobe/verify/counter_state.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kMostFlowSteps = std::size_t{1} << 20;

// The result does not depend on what the register held: xor %r,%r and its like; setcc leaves a part
// of an address.
bool forgets(const X86Reading& code) {
  if (code.operation == Operation::setcc || code.operation == Operation::setne)
    return code.operands[0].kind == ReadOperand::Kind::registr;
  const bool clears = code.operation == Operation::bit_xor || code.operation == Operation::sub ||
                      code.operation == Operation::sbb;
  return clears && code.register_at(0) && code.register_at(0) == code.register_at(1) &&
         code.operands[0].bits >= 32;
}

// Does it give an address of the frame to anything but %rsp and %rbp?
bool shares_frame(const X86Reading& code) {
  const auto& memory = code.memory;
  const auto to = code.register_at(0);
  const bool to_frame = to == kStackPointer || to == kFramePointer;
  const bool based = memory && (memory->base == kStackPointer || memory->base == kFramePointer);
  if (based && code.operation == Operation::lea) return !to_frame;
  if (based && memory->index && code.operation != Operation::nop) return true;
  return code.operation == Operation::mov && code.register_at(1) == kStackPointer && !to_frame;
}

class CounterWalk {
 public:
  CounterWalk(const ElfFile& file, const CodeRanges& ranges, Callees& callees,
              const FunctionFlow& flow, std::span<const CounterOperand> operands,
              std::span<const std::vector<VirtAddr>> sites)
      : file_(file),
        ranges_(ranges),
        callees_(callees),
        flow_(flow),
        results_(results_of(flow)),
        operands_(operands),
        sites_(sites) {}

  CounterFlow run() {
    told_.resize(operands_.size());
    arrive(flow_.function.start, CounterState{});
    // Calls that throw lead to the landing pads.
    constexpr TargetKinds kFromElsewhere = kTargetForeign | kTargetSymbol | kTargetFde;
    for (const CodeTarget& target : flow_.targets) {
      if ((target.kinds & kTargetLandingPad) != 0) pads_.push_back(target.address);
      if ((target.kinds & kFromElsewhere) == 0 || target.address == flow_.function.start) continue;
      CounterState unknown;
      unknown.rsp = std::nullopt;
      arrive(target.address, unknown);
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
    bool left{};  // in %rdx, where the function returns
    std::map<VirtAddr, const char*> misused;
  };

  void arrive(VirtAddr at, const CounterState& state) {
    const auto [found, is_new] = states_.try_emplace(at.value, state);
    if (!is_new) {
      CounterState joined = found->second;
      joined.join(state);
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
  // The planner's reading of the instruction tells what the callee is; nothing else is asked of it.
  [[nodiscard]] CallEffect effect_of(const X86Reading& code) const {
    const auto call = ranges_.decode_at(code.address);
    return call ? callees_.effect(*call) : CallEffect{};
  }

  void step(const X86Reading& code, CounterState state) {
    if (code.is_call()) {
      const CallEffect effect = effect_of(code);
      apply_call(effect, state);
      throw_from(state);
      if (!effect.returns) return;
    } else {
      apply(code, state);
      take_address(code, state);
    }
    // Other code is followed only while it may hold an address.
    const auto go = [&](VirtAddr to) {
      if (in_function(to) || state.holds_any()) arrive(to, state);
    };
    if (code.flow == ReadFlow::indirect_jump) {
      if (!in_function(code.address)) return;
      for (const CodeTarget& target : flow_.targets) {
        constexpr TargetKinds kNoJump =
            kTargetBranch | kTargetSite | kTargetEntry | kTargetLandingPad | kTargetForeign;
        if ((target.kinds & ~kNoJump) != 0) go(target.address);
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

  // An exception leaves callee-saved registers and the frame, as far as is known.
  void throw_from(const CounterState& state) {
    if (pads_.empty()) return;
    CounterState thrown = state;
    for (unsigned reg = 0; reg < 16; ++reg) {
      if (!in_registers(kCalleeSaved, reg)) thrown.registers[reg] = HeldValue{};
      thrown.registers[reg].other = true;
    }
    for (const VirtAddr pad : pads_) arrive(pad, thrown);
  }

  void take_address(const X86Reading& code, CounterState& state) const {
    if (code.operation == Operation::nop) return;
    const auto taken = std::ranges::lower_bound(
        operands_, code.address, {}, [](const CounterOperand& o) { return o.code.address; });
    if (taken == operands_.end() || taken->code.address != code.address || !taken->address) return;
    const auto index = static_cast<std::uint32_t>(taken - operands_.begin());
    if (const auto to = code.register_at(0))
      state.registers[*to] = HeldValue{{index << 1}, false, std::nullopt};
  }

  void misuse(const HeldValue& held, VirtAddr at, const char* what) {
    for (const std::uint32_t origin : held.origins)
      if ((origin & 1) == 0) told_[origin >> 1].misused.emplace(at, what);
  }
  // A result in %rdx is the second half of one that begins in %rax (System V ABI, 3.2.3).
  void pass_on(const HeldValue& held, bool second_half) {
    for (const std::uint32_t origin : held.origins) {
      if ((origin & 1) != 0) continue;
      Told& told = told_[origin >> 1];
      (second_half ? told.left : told.passed_on) = true;
    }
  }

  void judge(VirtAddr at, const CounterState& state) {
    const auto code = read_x86(file_, at);
    if (code && shares_frame(*code) && in_function(at)) shared_ = true;
    if (!state.holds_any()) return;
    if (!code) {
      for (const HeldValue& held : state.registers) misuse(held, at, "code that is not understood");
      for (const auto& [word, held] : state.words) misuse(held, at, "code that is not understood");
      return;
    }
    if (code->operation == Operation::nop) {
      for (unsigned reg = 0; reg < 16; ++reg) note_site(state.registers[reg], at);
      return;
    }
    const auto copy = wide_copy(*code, state);
    for (unsigned reg = 0; reg < 16; ++reg) {
      const HeldValue& held = state.registers[reg];
      if (held.counter()) judge_register(*code, reg, state, copy && copy->from_register == reg);
    }
    if (!state.words.empty()) judge_words(*code, state, copy);
    const bool leaves =
        code->flow == ReadFlow::indirect_jump && (!flow_.complete || !in_function(at));
    for (const HeldValue& held : state.registers) {
      if (leaves) misuse(held, at, "an indirect jump that is not understood");
    }
    if (copy && copy->to_word && copy->from_register)
      kept_at_.emplace_back(at, state.registers[*copy->from_register]);
  }

  void note_site(const HeldValue& held, VirtAddr at) {
    for (const std::uint32_t origin : held.origins) {
      if ((origin & 1) != 0) continue;
      const auto& sites = sites_[operands_[origin >> 1].counter];
      told_[origin >> 1].at_site |= std::ranges::binary_search(sites, at);
    }
  }

  // Registers in which those who get control there may find an argument or a result.
  [[nodiscard]] ReadRegisters passed(const X86Reading& code) const {
    if (code.is_call()) return effect_of(code).read;
    if (code.flow == ReadFlow::ret) return results_;
    if (code.target && is_tail_call(code)) return callees_.passed_by_jump(*code.target, results_);
    return 0;
  }

  // Does the operand lie at the counter whose address, or whose distance from the GOT, is held?
  [[nodiscard]] bool leads_to_counter(const ReadMemory& memory, unsigned reg,
                                      const CounterState& state) const {
    if (memory.segment || memory.vector_index || memory.displacement != 0 || memory.address32 ||
        (memory.bytes != 1 && memory.bytes != 2)) {
      return false;
    }
    return std::ranges::all_of(state.registers[reg].origins, [&](std::uint32_t origin) {
      const auto& got = operands_[origin >> 1].got;
      if (!got) return memory.base == reg && !memory.index;
      if (!memory.base || !memory.index || memory.scale != 1 || memory.base == memory.index)
        return false;
      const unsigned other = memory.base == reg ? *memory.index : *memory.base;
      return (memory.base == reg || memory.index == reg) &&
             state.registers[other].constant == got->value;
    });
  }

  void judge_register(const X86Reading& code, unsigned reg, const CounterState& state,
                      bool copied) {
    const HeldValue& held = state.registers[reg];
    note_site(held, code.address);
    if (held.certain() && in_registers(passed(code), reg))
      pass_on(held, code.flow == ReadFlow::ret && reg == kRdx);
    if (forgets(code) && code.operands[0].reg == reg) return;
    const auto& memory = code.memory;
    if (memory && !code.is_call() && leads_to_counter(*memory, reg, state))
      return add_check(code, held);
    if (copied) return;
    const bool is_operand =
        std::ranges::any_of(code.shown(),
                            [&](const ReadOperand& operand) {
                              return operand.kind == ReadOperand::Kind::registr &&
                                     operand.reg == reg && operand.read;
                            }) ||
        (memory && (memory->base == reg || memory->index == reg));
    const bool reads =
        code.is_call() || code.flow == ReadFlow::ret ? is_operand : in_registers(code.reads, reg);
    if (reads) misuse(held, code.address, "the counter's address is used for more than checks");
  }

  void judge_words(const X86Reading& code, const CounterState& state,
                   const std::optional<WideCopy>& copy) {
    const auto operand = frame_operand(code, state);
    for (const auto& [word, held] : state.words) {
      const bool twice = code.is_call() && callees_returns_twice(code);
      if (twice) misuse(held, code.address, "the counter's address is kept over a setjmp");
      const bool touched = operand && overlaps(word, *operand, code.memory->bytes);
      const bool copied = copy && (copy->from_word == word || copy->to_word == word);
      if (touched && !copied && !is_full_store(code, word, *operand))
        misuse(held, code.address, "the word that keeps the counter's address is used");
    }
  }
  // It overwrites the word and does not read it.
  static bool is_full_store(const X86Reading& code, const FramePoint& word, const FramePoint& at) {
    return code.operation == Operation::mov && word == at && code.operands[0].bits == 64 &&
           code.operands[0].kind == ReadOperand::Kind::memory;
  }
  [[nodiscard]] bool callees_returns_twice(const X86Reading& code) const {
    const auto call = ranges_.decode_at(code.address);
    return !call || callees_.returns_twice(*call);
  }

  void add_check(const X86Reading& code, const HeldValue& held) {
    if (!in_function(code.address))
      return misuse(held, code.address, "a check in a part of the function that stands elsewhere");
    PointerCheck check{code, {}, held.other || !flow_.complete};
    for (const std::uint32_t origin : held.origins) {
      told_[origin >> 1].checked = true;
      check.counters.push_back(operands_[origin >> 1].counter);
    }
    std::ranges::sort(check.counters);
    check.counters.erase(std::unique(check.counters.begin(), check.counters.end()),
                         check.counters.end());
    out_.checks.push_back(std::move(check));
  }

  void report() {
    for (const auto& [at, held] : kept_at_) {
      if (shared_) misuse(held, at, "kept in memory that others may reach");
    }
    for (std::size_t i = 0; i < told_.size(); ++i) {
      const CounterOperand& operand = operands_[i];
      if (!operand.address) continue;
      const Told& told = told_[i];
      for (const auto& [at, what] : told.misused)
        out_.unknown.push_back({operand.counter, at, what});
      if (told.checked) out_.origins.push_back(operand.code.address);
      if (too_long_)
        out_.unknown.push_back({operand.counter, operand.code.address, "too long to be followed"});
      // What is left of a probe's operand ("m"(semaphore), sys/sdt.h) in %rdx is no result.
      if (told.passed_on || (told.left && (told.checked || !told.at_site)))
        out_.unknown.push_back(
            {operand.counter, operand.code.address, "the counter's address may be passed on"});
    }
  }

  const ElfFile& file_;
  const CodeRanges& ranges_;
  Callees& callees_;
  const FunctionFlow& flow_;
  RegisterSet results_;
  std::span<const CounterOperand> operands_;
  std::span<const std::vector<VirtAddr>> sites_;
  std::vector<VirtAddr> pads_;
  std::map<std::uint64_t, CounterState> states_;  // before the instruction there
  std::set<std::uint64_t> open_;
  std::vector<Told> told_;                               // of each operand
  std::vector<std::pair<VirtAddr, HeldValue>> kept_at_;  // what is stored into the frame
  bool shared_{};                                        // others may reach the frame
  bool too_long_{};
  CounterFlow out_;
};

}  // namespace

CounterFlow follow_counters(const ElfFile& file, const CodeRanges& ranges, Callees& callees,
                            const FunctionFlow& flow, std::span<const CounterOperand> operands,
                            std::span<const std::vector<VirtAddr>> sites) {
  return CounterWalk(file, ranges, callees, flow, operands, sites).run();
}

}  // namespace reprobe
