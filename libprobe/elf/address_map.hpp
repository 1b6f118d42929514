// Which of many address ranges holds an address, where ranges may overlap and one has to win.
// Made once, asked often: a linear search would be quadratic in what a file can state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "libprobe/elf/types.hpp"

namespace reprobe {

struct AddressRange {
  VirtAddr start;
  Size size;           // a range that would pass 2^64 ends there
  std::uint32_t id{};  // what find() gives
};

class AddressMap {
 public:
  AddressMap() = default;
  // Where ranges overlap, the earlier in `best_first` wins. O(n log n).
  explicit AddressMap(std::span<const AddressRange> best_first);

  // The id of the range that holds the address. O(log n).
  [[nodiscard]] std::optional<std::uint32_t> find(VirtAddr address) const;

 private:
  struct Piece {
    std::uint64_t start;
    std::optional<std::uint32_t> id;  // nothing: a gap
  };
  std::vector<Piece> pieces_;  // each ends where the next starts
};

}  // namespace reprobe
