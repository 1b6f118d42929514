#include "libprobe/verify/counter_state.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace reprobe {
namespace {

constexpr std::int64_t kFrameWordBytes = 8;
constexpr std::int64_t kBelowStack = 128;  // that a leaf function may use (psABI, 3.2.2)

std::optional<FramePoint> moved(std::optional<FramePoint> point, std::int64_t by) {
  if (point) point->offset += by;
  return point;
}

bool is_wide_operand(const X86Reading& code, unsigned operand) {
  return code.operands[operand].bits == 64;
}

// lea label(%rip),%r; movabs $distance,%r; add %r,%r: how the address of the GOT is computed.
std::optional<std::uint64_t> constant_of(const X86Reading& code, const CounterState& old) {
  if (code.operation == Operation::lea && code.rip_field) return code.memory->address->value;
  if (code.operation == Operation::mov && code.immediate())
    return static_cast<std::uint64_t>(*code.immediate());
  const auto to = code.register_at(0), from = code.register_at(1);
  if (code.operation != Operation::add || !to || !from) return std::nullopt;
  const auto a = old.registers[*to].constant, b = old.registers[*from].constant;
  return a && b ? std::optional(*a + *b) : std::nullopt;
}

bool writes_operand(const X86Reading& code) {
  return std::ranges::any_of(code.shown(), [](const ReadOperand& operand) {
    return operand.kind == ReadOperand::Kind::memory && operand.written;
  });
}

void overwrite(CounterState& state, const FramePoint& at, std::int64_t size) {
  std::erase_if(state.words, [&](const auto& word) { return overlaps(word.first, at, size); });
}

void drop_words(CounterState& state, std::int64_t below) {
  if (!state.rsp) return;
  std::erase_if(state.words, [&](const auto& word) {
    return word.first.base == state.rsp->base && word.first.offset < state.rsp->offset - below;
  });
}

void move_frame(const X86Reading& code, const CounterState& old, CounterState& state) {
  const auto to = code.register_at(0), from = code.register_at(1);
  const auto by = code.immediate();
  std::optional<FramePoint> value;
  if (code.operation == Operation::mov && is_wide_operand(code, 0)) {
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
  if (in_registers(code.writes, kFramePointer))
    state.rbp = to == kFramePointer ? value : std::nullopt;
  if (!in_registers(code.writes, kStackPointer)) return;
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

}  // namespace

bool HeldValue::certain() const {
  return std::ranges::any_of(origins, [](std::uint32_t origin) { return (origin & 1) == 0; });
}

void HeldValue::make_uncertain() {
  for (std::uint32_t& origin : origins) origin |= 1;
  origins.erase(std::unique(origins.begin(), origins.end()), origins.end());
  other = true;
  constant = std::nullopt;
}

void HeldValue::join(const HeldValue& from) {
  if (constant != from.constant) constant = std::nullopt;
  std::vector<std::uint32_t> all;
  std::ranges::set_union(origins, from.origins, std::back_inserter(all));
  origins = std::move(all);
  other = other || from.other;
}

bool CounterState::holds_any() const {
  return !words.empty() || std::ranges::any_of(registers, &HeldValue::counter);
}

void CounterState::join(const CounterState& from) {
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

std::optional<FramePoint> frame_operand(const X86Reading& code, const CounterState& state) {
  const auto& memory = code.memory;
  if (!memory || memory->bytes == 0 || memory->index || memory->segment || memory->vector_index ||
      code.operation == Operation::nop) {
    return std::nullopt;
  }
  if (memory->base == kStackPointer) return moved(state.rsp, memory->displacement);
  if (memory->base == kFramePointer) return moved(state.rbp, memory->displacement);
  return std::nullopt;
}

std::optional<WideCopy> wide_copy(const X86Reading& code, const CounterState& state) {
  WideCopy copy;
  if (code.operation == Operation::mov && is_wide_operand(code, 0)) {
    copy = {code.register_at(1), code.register_at(0), {}, {}};
    const auto word = frame_operand(code, state);
    (code.operands[0].kind == ReadOperand::Kind::memory ? copy.to_word : copy.from_word) = word;
  } else if (code.operation == Operation::push && is_wide_operand(code, 0)) {
    copy = {code.register_at(0), {}, {}, moved(state.rsp, -kFrameWordBytes)};
  } else if (code.operation == Operation::pop && is_wide_operand(code, 0)) {
    copy = {{}, code.register_at(0), state.rsp, {}};
  }
  const bool from = copy.from_register || copy.from_word, to = copy.to_register || copy.to_word;
  const bool stack = copy.from_register == kStackPointer || copy.to_register == kStackPointer;
  return from && to && !stack ? std::optional(copy) : std::nullopt;
}

bool overlaps(const FramePoint& word, const FramePoint& at, std::int64_t size) {
  return word.base == at.base && word.offset < at.offset + size &&
         at.offset < word.offset + kFrameWordBytes;
}

void apply_call(const CallEffect& effect, CounterState& state) {
  for (unsigned reg = 0; reg < 16; ++reg) {
    const bool kept =
        !in_registers(effect.written, reg) && (effect.complete || in_registers(kCalleeSaved, reg));
    if (!kept) state.registers[reg].make_uncertain();
  }
  // The callee's frame begins there.
  drop_words(state, 0);
}

void apply(const X86Reading& code, CounterState& state) {
  if (code.operation == Operation::nop) return;
  const CounterState old = state;
  const auto copy = wide_copy(code, old);
  if (const auto word = frame_operand(code, old); word && writes_operand(code))
    overwrite(state, *word, code.memory->bytes);
  if (code.operation == Operation::push && old.rsp)
    overwrite(state, *moved(old.rsp, -kFrameWordBytes), kFrameWordBytes);
  for (unsigned reg = 0; reg < 16; ++reg) {
    if (in_registers(code.writes, reg)) state.registers[reg] = HeldValue{};
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
  if (const auto to = code.register_at(0); to && is_wide_operand(code, 0))
    if (const auto value = constant_of(code, old)) state.registers[*to].constant = value;
  move_frame(code, old, state);
}

}  // namespace reprobe
