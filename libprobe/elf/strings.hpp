// A string table (SHT_STRTAB): NUL-terminated strings found by their offset.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {

class StringTable {
 public:
  StringTable() = default;
  explicit StringTable(ByteView bytes) : bytes_(bytes) {}

  [[nodiscard]] std::uint64_t size() const { return bytes_.size(); }

  // The string at the offset, without its NUL; nothing where it starts or ends outside the table.
  // Takes bounded time however long the strings are: millions of symbols may all name one string
  // that fills the table.
  [[nodiscard]] std::optional<std::string_view> at(std::uint64_t offset) const;

 private:
  [[nodiscard]] std::optional<std::uint64_t> end_of_long_string(std::uint64_t offset) const;

  ByteView bytes_;
  // Offsets of the NULs that end a string of kShort bytes or more; made when the first is met.
  mutable std::optional<std::vector<std::uint64_t>> long_ends_;
};

}  // namespace reprobe
