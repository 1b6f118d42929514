// What registers and the frame of a function may hold of counters' addresses, and what an
// instruction does to that. x86-64 only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "libprobe/code/callees.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {

[[nodiscard]] constexpr bool in_registers(ReadRegisters set, unsigned reg) {
  return (set >> reg & 1) != 0;
}

// What a register or a word of the frame may hold: addresses that instructions took, by index, with
// the lowest bit set where a call may have overwritten them; and something else.
struct HeldValue {
  std::vector<std::uint32_t> origins;  // ascending
  bool other{true};
  std::optional<std::uint64_t> constant;  // of a register: what it holds on every way

  [[nodiscard]] bool counter() const { return !origins.empty(); }
  [[nodiscard]] bool certain() const;
  void make_uncertain();
  void join(const HeldValue& from);
  bool operator==(const HeldValue&) const = default;
};

// An address of the frame: it counts from %rsp at the function's entry (base 0), or from what the
// instruction at `base` has put into %rsp.
struct FramePoint {
  std::uint64_t base{};
  std::int64_t offset{};
  auto operator<=>(const FramePoint&) const = default;
};

struct CounterState {
  std::array<HeldValue, 16> registers;
  std::map<FramePoint, HeldValue> words;  // those that may hold a counter's address
  std::optional<FramePoint> rsp{FramePoint{}}, rbp;
  bool operator==(const CounterState&) const = default;

  [[nodiscard]] bool holds_any() const;
  void join(const CounterState& from);
};

// Where the operand lies, if it counts from %rsp or %rbp alone.
[[nodiscard]] std::optional<FramePoint> frame_operand(const X86Reading& code,
                                                      const CounterState& state);

// A copy of 64 bits between registers and words of the frame.
struct WideCopy {
  std::optional<unsigned> from_register, to_register;
  std::optional<FramePoint> from_word, to_word;
};
[[nodiscard]] std::optional<WideCopy> wide_copy(const X86Reading& code, const CounterState& state);

// Does the word of the frame share a byte with `size` bytes at another place?
[[nodiscard]] bool overlaps(const FramePoint& word, const FramePoint& at, std::int64_t size);

// The state behind an instruction that is no call.
void apply(const X86Reading& code, CounterState& state);
void apply_call(const CallEffect& effect, CounterState& state);

}  // namespace reprobe
