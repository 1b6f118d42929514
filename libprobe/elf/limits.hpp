// Bounds on what is taken into memory. A count from the file is checked against the file's size
// first; but a file with holes can be terabytes long at no cost, so the size alone is no bound.
// Both are several times more than the largest links leave behind.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reprobe {

inline constexpr std::uint64_t kMaxHeaders = std::uint64_t{1} << 22;  // sections, segments
inline constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 26;  // symbols, relocations

// Names of the file that are copied into results. Every probe of a hostile file can name the same
// long string: together the copies are kept to a multiple of the file's own size, and what goes
// beyond it is cut. No sane file comes near.
class TextBudget {
 public:
  explicit TextBudget(std::uint64_t file_size)
      : left_(std::min(file_size, kMaxText / kPerFileByte) * kPerFileByte) {}

  [[nodiscard]] std::string take(std::string_view text) {
    if (text.size() <= std::max<std::uint64_t>(left_, kShort)) {
      left_ -= std::min<std::uint64_t>(left_, text.size());
      return std::string(text);
    }
    return std::string(text.substr(0, kShort)) + "...";
  }

 private:
  static constexpr std::uint64_t kPerFileByte = 4, kMaxText = std::uint64_t{1} << 30;
  static constexpr std::size_t kShort = 64;

  std::uint64_t left_;
};

}  // namespace reprobe
