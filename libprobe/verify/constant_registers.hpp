// Which registers hold a known constant before an instruction, whatever way control took there:
// found by following the function forwards, until nothing changes. x86-64.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "libprobe/code/flow.hpp"

namespace reprobe {

class ConstantRegisters {
 public:
  // `flow` must be complete and outlive this. Of a function that is longer than any compiler's
  // nothing is known.
  explicit ConstantRegisters(const FunctionFlow& flow);

  // The register's value before the instruction, by its index in flow.code.
  [[nodiscard]] std::optional<std::uint64_t> before(std::size_t at, unsigned reg) const;

 private:
  struct Value {
    bool known{};
    std::uint64_t number{};
    bool operator==(const Value&) const = default;
  };
  using State = std::array<Value, 16>;

  void arrive(std::size_t at, const State& state);
  void step(std::size_t at);
  static State after(const CodeInstruction& code, State state);

  const FunctionFlow& flow_;
  std::vector<std::optional<State>> states_;  // nothing: not reached so far
  std::vector<std::size_t> open_;
};

}  // namespace reprobe
