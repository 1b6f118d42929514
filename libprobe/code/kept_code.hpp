// Code that stays what it is, or where it is, though control flow would let it move.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "libprobe/code/x86_operands.hpp"

namespace reprobe {

enum class KeptHow : std::uint8_t {
  bytes,    // read, written or patched as data, or relocated: neither moved nor overwritten
  address,  // the address of its instructions has a meaning: none of them is moved
  faults,   // an exception that is thrown there has a landing pad: what may fault is not moved
};

struct KeptCode {
  VirtAddr start;
  VirtAddr end;  // exclusive
  KeptHow how{};
  std::string_view why;  // stable words
};

class KeptRanges {
 public:
  KeptRanges() = default;
  // In any order; they may overlap.
  explicit KeptRanges(std::vector<KeptCode> ranges);

  // Why the instruction must not move; nothing where it may. O(log n), as the next.
  [[nodiscard]] std::optional<std::string_view> why_stays(const CodeInstruction& code) const;
  // Why bytes in [begin, end) must stay what they are; nothing where they need not.
  [[nodiscard]] std::optional<std::string_view> why_kept(VirtAddr begin, VirtAddr end) const;

 private:
  [[nodiscard]] std::optional<std::string_view> find(KeptHow how, VirtAddr begin,
                                                     VirtAddr end) const;

  std::array<std::vector<KeptCode>, 3> ranges_;  // by KeptHow; disjoint, by start
};

}  // namespace reprobe
