// What lies where in a file, so that a rewrite touches only bytes that nothing else claims: in a
// hostile file a section can lie over a header table, a segment or another section.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

class FileRanges {
 public:
  // The ELF header, both header tables, the segments and the sections.
  explicit FileRanges(const ElfFile& file);

  // Who else claims a byte of the section's contents: "a header table", "a segment" or the name of
  // a section; nothing where nobody does. O(log n).
  [[nodiscard]] std::optional<std::string> sharer(const Section& section) const;
  // The same for the section header table.
  [[nodiscard]] std::optional<std::string> sharer_of_section_headers() const;
  // Does a section claim a byte of the ELF header? Segments may: most files load it.
  [[nodiscard]] bool section_over_header() const { return section_over_header_; }
  // The bytes from `from` on that nobody claims, as [begin, end) in ascending order.
  [[nodiscard]] std::vector<std::pair<std::uint64_t, std::uint64_t>> unclaimed(
      std::uint64_t from) const;

 private:
  // Of sections the owner is their index, of everything else one of these.
  static constexpr std::uint64_t kHeader = std::uint64_t{1} << 32, kProgramHeaders = kHeader + 1,
                                 kSectionHeaders = kHeader + 2, kSegment = kHeader + 3;
  struct Range {
    std::uint64_t begin{};
    std::uint64_t end{};
    std::uint64_t owner{};
    // Of this range and all before it, the one that ends last, and the one that does among those of
    // other owners: indices in ranges_.
    std::size_t last{};
    std::optional<std::size_t> second;
  };

  void add(std::uint64_t begin, std::uint64_t size, std::uint64_t owner);
  void find_last_ends();
  [[nodiscard]] std::optional<std::string> sharer(std::uint64_t begin, std::uint64_t size,
                                                  std::uint64_t owner) const;

  const ElfFile& file_;
  std::vector<Range> ranges_;  // by begin
  bool section_over_header_{};
};

}  // namespace reprobe
