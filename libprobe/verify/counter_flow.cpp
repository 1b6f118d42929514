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
constexpr std::int64_t kBelowStack = 128;  // that a leaf function may use (psABI, 3.2.2)

bool in_set(ReadRegisters set, unsigned reg) { return (set >> reg & 1) != 0; }

// What a register or a word of the frame may hold: addresses that instructions took, by index, with
// the lowest bit set where a call may have overwritten them; and something else.
struct HeldValue {
  std::vector<std::uint32_t> origins;  // ascending
  bool other{true};
  std::optional<std::uint64_t> constant;  // of a register: what it holds on every way

  [[nodiscard]] bool counter() const { return !origins.empty(); }
  [[nodiscard]] bool certain() const {
    return std::ranges::any_of(origins, [](std::uint32_t origin) { return (origin & 1) == 0; });
  }
  void make_uncertain() {
    for (std::uint32_t& origin : origins) origin |= 1;
    origins.erase(std::unique(origins.begin(), origins.end()), origins.end());
    other = true;
    constant = std::nullopt;
  }
  void join(const HeldValue& from) {
    if (constant != from.constant) constant = std::nullopt;
    std::vector<std::uint32_t> all;
    std::ranges::set_union(origins, from.origins, std::back_inserter(all));
    origins = std::move(all);
    other = other || from.other;
  }
  bool operator==(const HeldValue&) const = default;
};

// An address of the frame: it counts from %rsp at the function's entry (base 0), or from what the
// instruction at `base` has put into %rsp.
struct FramePoint {
  std::uint64_t base{};
  std::int64_t offset{};
  auto operator<=>(const FramePoint&) const = default;
};

std::optional<FramePoint> moved(std::optional<FramePoint> point, std::int64_t by) {
  if (point) point->offset += by;
  return point;
}

struct FlowState {
  std::array<HeldValue, 16> registers;
  std::map<FramePoint, HeldValue> words;  // those that may hold a counter's address
  std::optional<FramePoint> rsp{FramePoint{}}, rbp;
  bool operator==(const FlowState&) const = default;

  [[nodiscard]] bool holds_any() const {
    return !words.empty() || std::ranges::any_of(registers, &HeldValue::counter);
  }
  void join(const FlowState& from) {
    for (unsigned reg = 0; reg < registers.size(); ++reg) registers[reg].join(from.registers[reg]);
    for (auto& [place, held] : words)
      if (!from.words.contains(place)) held.other = true;
    for (const auto& [place, held] : from.words) {
      const auto [word, added] = words.try_emplace(place, held);
      if (added) word->second.other = true;
      word->second.join(held);
    }
    if (rsp != from.rsp) rsp = std::nullopt;
    if (rbp != from.rbp) rbp = std::nullopt;
  }
};

// Where the operand lies, if it counts from %rsp or %rbp alone.
std::optional<FramePoint> frame_operand(const X86Reading& code, const FlowState& state) {
  const auto& memory = code.memory;
  if (!memory || memory->bytes == 0 || memory->index || memory->segment || memory->vector_index ||
      code.operation == Operation::nop) {
    return std::nullopt;
  }
  if (memory->base == kStackPointer) return moved(state.rsp, memory->displacement);
  if (memory->base == kFramePointer) return moved(state.rbp, memory->displacement);
  return std::nullopt;
}

bool is_wide(const X86Reading& code, unsigned operand) { return code.operands[operand].bits == 64; }

// A copy of 64 bits between registers and words of the frame.
struct WideCopy {
  std::optional<unsigned> from_register, to_register;
  std::optional<FramePoint> from_word, to_word;
};

std::optional<WideCopy> wide_copy(const X86Reading& code, const FlowState& state) {
  WideCopy copy;
  if (code.operation == Operation::mov && is_wide(code, 0)) {
    copy = {code.register_at(1), code.register_at(0), {}, {}};
    const auto word = frame_operand(code, state);
    (code.operands[0].kind == ReadOperand::Kind::memory ? copy.to_word : copy.from_word) = word;
  } else if (code.operation == Operation::push && is_wide(code, 0)) {
    copy = {code.register_at(0), {}, {}, moved(state.rsp, -kFrameWordBytes)};
  } else if (code.operation == Operation::pop && is_wide(code, 0)) {
    copy = {{}, code.register_at(0), state.rsp, {}};
  }
  const bool from = copy.from_register || copy.from_word, to = copy.to_register || copy.to_word;
  const bool stack = copy.from_register == kStackPointer || copy.to_register == kStackPointer;
  return from && to && !stack ? std::optional(copy) : std::nullopt;
}

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
    arrive(flow_.function.start, FlowState{});
    // Calls that throw lead to the landing pads.
    constexpr TargetKinds kFromElsewhere = kTargetForeign | kTargetSymbol | kTargetFde;
    for (const CodeTarget& target : flow_.targets) {
      if ((target.kinds & kTargetLandingPad) != 0) pads_.push_back(target.address);
      if ((target.kinds & kFromElsewhere) == 0 || target.address == flow_.function.start) continue;
      FlowState unknown;
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
    std::map<VirtAddr, const char*> misused;
  };

  void arrive(VirtAddr at, const FlowState& state) {
    const auto [found, is_new] = states_.try_emplace(at.value, state);
    if (!is_new) {
      FlowState joined = found->second;
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

  void step(const X86Reading& code, FlowState state) {
    if (code.is_call()) {
      const CallEffect effect = effect_of(code);
      apply_call(effect, state);
      throw_from(state);
      if (!effect.returns) return;
    } else {
      apply(code, state);
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
  void throw_from(const FlowState& state) {
    if (pads_.empty()) return;
    FlowState thrown = state;
    for (unsigned reg = 0; reg < 16; ++reg) {
      if (!in_set(kCalleeSaved, reg)) thrown.registers[reg] = HeldValue{};
      thrown.registers[reg].other = true;
    }
    for (const VirtAddr pad : pads_) arrive(pad, thrown);
  }

  static void apply_call(const CallEffect& effect, FlowState& state) {
    for (unsigned reg = 0; reg < 16; ++reg) {
      const bool kept =
          !in_set(effect.written, reg) && (effect.complete || in_set(kCalleeSaved, reg));
      if (!kept) state.registers[reg].make_uncertain();
    }
    // The callee's frame begins there.
    drop_words(state, 0);
  }

  // The state behind the instruction.
  void apply(const X86Reading& code, FlowState& state) const {
    if (code.operation == Operation::nop) return;
    const FlowState old = state;
    const auto copy = wide_copy(code, old);
    if (const auto word = frame_operand(code, old); word && writes_operand(code))
      overwrite(state, *word, code.memory->bytes);
    if (code.operation == Operation::push && old.rsp)
      overwrite(state, *moved(old.rsp, -kFrameWordBytes), kFrameWordBytes);
    for (unsigned reg = 0; reg < 16; ++reg) {
      if (in_set(code.writes, reg)) state.registers[reg] = HeldValue{};
    }
    if (copy) {
      HeldValue value;
      if (copy->from_register) value = old.registers[*copy->from_register];
      if (copy->from_word) {
        const auto word = old.words.find(*copy->from_word);
        if (word != old.words.end()) value = word->second;
      }
      if (copy->to_register) state.registers[*copy->to_register] = value;
      if (copy->to_word && value.counter()) state.words.insert_or_assign(*copy->to_word, value);
    }
    if (const auto to = code.register_at(0); to && is_wide(code, 0))
      if (const auto value = constant_of(code, old)) state.registers[*to].constant = value;
    move_frame(code, old, state);
    take_address(code, state);
  }

  void take_address(const X86Reading& code, FlowState& state) const {
    const auto taken = std::ranges::lower_bound(
        operands_, code.address, {}, [](const CounterOperand& o) { return o.code.address; });
    if (taken == operands_.end() || taken->code.address != code.address || !taken->address) return;
    const auto index = static_cast<std::uint32_t>(taken - operands_.begin());
    if (const auto to = code.register_at(0))
      state.registers[*to] = HeldValue{{index << 1}, false, std::nullopt};
  }

  // lea label(%rip),%r; movabs $distance,%r; add %r,%r: how the address of the GOT is computed.
  static std::optional<std::uint64_t> constant_of(const X86Reading& code, const FlowState& old) {
    if (code.operation == Operation::lea && code.rip_field) return code.memory->address->value;
    if (code.operation == Operation::mov && code.immediate())
      return static_cast<std::uint64_t>(*code.immediate());
    const auto to = code.register_at(0), from = code.register_at(1);
    if (code.operation != Operation::add || !to || !from) return std::nullopt;
    const auto a = old.registers[*to].constant, b = old.registers[*from].constant;
    return a && b ? std::optional(*a + *b) : std::nullopt;
  }

  static bool writes_operand(const X86Reading& code) {
    return std::ranges::any_of(code.shown(), [](const ReadOperand& operand) {
      return operand.kind == ReadOperand::Kind::memory && operand.written;
    });
  }

  static bool overlaps(const FramePoint& word, const FramePoint& at, std::int64_t size) {
    return word.base == at.base && word.offset < at.offset + size &&
           at.offset < word.offset + kFrameWordBytes;
  }
  static void overwrite(FlowState& state, const FramePoint& at, std::int64_t size) {
    std::erase_if(state.words, [&](const auto& word) { return overlaps(word.first, at, size); });
  }
  static void drop_words(FlowState& state, std::int64_t below) {
    if (!state.rsp) return;
    std::erase_if(state.words, [&](const auto& word) {
      return word.first.base == state.rsp->base && word.first.offset < state.rsp->offset - below;
    });
  }

  static void move_frame(const X86Reading& code, const FlowState& old, FlowState& state) {
    const auto to = code.register_at(0), from = code.register_at(1);
    const auto by = code.immediate();
    std::optional<FramePoint> value;
    if (code.operation == Operation::mov && is_wide(code, 0)) {
      if (from == kStackPointer) value = old.rsp;
      if (from == kFramePointer) value = old.rbp;
    } else if (code.operation == Operation::lea && code.memory && !code.memory->index) {
      if (code.memory->base == kStackPointer) value = moved(old.rsp, code.memory->displacement);
      if (code.memory->base == kFramePointer) value = moved(old.rbp, code.memory->displacement);
    } else if (by && (code.operation == Operation::add || code.operation == Operation::sub)) {
      const std::int64_t up = code.operation == Operation::add ? *by : -*by;
      if (to == kStackPointer) value = moved(old.rsp, up);
      if (to == kFramePointer) value = moved(old.rbp, up);
    }
    if (in_set(code.writes, kFramePointer)) state.rbp = to == kFramePointer ? value : std::nullopt;
    if (!in_set(code.writes, kStackPointer)) return;
    if (code.operation == Operation::push) {
      state.rsp = moved(old.rsp, -kFrameWordBytes);
    } else if (code.operation == Operation::pop && to != kStackPointer) {
      state.rsp = moved(old.rsp, kFrameWordBytes);
    } else if (code.operation == Operation::leave) {
      state.rsp = moved(old.rbp, kFrameWordBytes);
    } else if (to == kStackPointer && value) {
      state.rsp = value;
    } else {
      state.rsp = FramePoint{code.address.value, 0};
    }
    drop_words(state, kBelowStack);
  }

  void misuse(const HeldValue& held, VirtAddr at, const char* what) {
    for (const std::uint32_t origin : held.origins)
      if ((origin & 1) == 0) told_[origin >> 1].misused.emplace(at, what);
  }
  void pass_on(const HeldValue& held) {
    for (const std::uint32_t origin : held.origins)
      if ((origin & 1) == 0) told_[origin >> 1].passed_on = true;
  }

  void judge(VirtAddr at, const FlowState& state) {
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
                                      const FlowState& state) const {
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

  void judge_register(const X86Reading& code, unsigned reg, const FlowState& state, bool copied) {
    const HeldValue& held = state.registers[reg];
    note_site(held, code.address);
    if (held.certain() && in_set(passed(code), reg)) pass_on(held);
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
        code.is_call() || code.flow == ReadFlow::ret ? is_operand : in_set(code.reads, reg);
    if (reads) misuse(held, code.address, "the counter's address is used for more than checks");
  }

  void judge_words(const X86Reading& code, const FlowState& state,
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
    return code.operation == Operation::mov && word == at && is_wide(code, 0) &&
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
      // What is left of a probe's operand ("m"(semaphore), sys/sdt.h) is of no use any more.
      if (told.passed_on && (told.checked || !told.at_site))
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
  std::map<std::uint64_t, FlowState> states_;  // before the instruction there
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
