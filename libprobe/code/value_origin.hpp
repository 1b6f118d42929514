// Where a register's value comes from, followed backwards over all paths of a piece of code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/code/jump_table.hpp"

namespace reprobe {

struct ValueOrigin {
  enum class Kind : std::uint8_t {
    pointer,   // a whole pointer: from memory, a callee or a caller
    constant,  // `address`, by lea or mov
    load32,    // a 32-bit word of memory, by the instruction `at`
    sum,       // of two registers, by the instruction `at`
    unknown,
  };
  Kind kind{};
  VirtAddr address;
  std::size_t at{};  // index in the code
};

class OriginFinder {
 public:
  explicit OriginFinder(const CodePiece& piece);

  // Of the register's value before the instruction `at`. Each origin once; {unknown} where paths
  // are too many.
  [[nodiscard]] std::vector<ValueOrigin> origins(std::size_t at, unsigned reg);

  // The instructions from which control may come to `at`; nothing where it may come from elsewhere
  // or from more than `most` of them.
  [[nodiscard]] std::optional<std::vector<std::size_t>> predecessors(std::size_t at,
                                                                     std::size_t most) const;

 private:
  struct Branch {
    VirtAddr target;
    std::size_t from{};
  };

  const CodePiece* piece_;
  std::vector<Branch> branches_;       // direct ones, by target
  std::vector<std::size_t> indirect_;  // jumps
  std::size_t steps_left_{};
};

}  // namespace reprobe
