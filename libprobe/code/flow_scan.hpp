// Searches a whole file for what refers into a few functions: a byte pattern search, not a
// disassembly, so that it misses no reference whatever the code around it is. What it finds too
// much are false targets, which cost no correctness. x86-64 only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// Address ranges that are asked for, and a filter that tells most other addresses at once.
class AddressRanges {
 public:
  struct Range {
    VirtAddr start;
    VirtAddr end;  // exclusive
  };

  AddressRanges() = default;
  // In any order; they may overlap.
  explicit AddressRanges(std::vector<Range> ranges);

  [[nodiscard]] bool contains(VirtAddr address) const {
    return filter_[slot(address.value)] && search(address);
  }
  [[nodiscard]] bool empty() const { return ranges_.empty(); }

 private:
  static constexpr unsigned kBlockShift = 6;
  static constexpr std::size_t kSlots = std::size_t{1} << 20;

  [[nodiscard]] static std::size_t slot(std::uint64_t address) {
    return static_cast<std::size_t>(address >> kBlockShift) % kSlots;
  }
  [[nodiscard]] bool search(VirtAddr address) const;

  std::vector<Range> ranges_;  // disjoint, sorted
  std::vector<bool> filter_;
};

enum class ReferenceKind : std::uint8_t {
  branch,      // jmp, jcc, xbegin with a 32-bit displacement
  call,        // call rel32
  lea,         // lea with a rip-relative operand
  relocation,  // source: the place that is relocated
  word,        // ET_EXEC: four bytes that hold it
  symbol,      // or what the ELF header or the dynamic section names: the program's entry
};

struct Reference {
  VirtAddr target;
  VirtAddr source;  // of the instruction; 0 for a symbol
  ReferenceKind kind{};
};

// All references into the ranges, by target and source.
struct References {
  std::vector<Reference> found;
  // Something that may hold references could not be read; empty where all was.
  std::string unread;

  // Those with targets in [first, end).
  [[nodiscard]] std::span<const Reference> into(VirtAddr first, VirtAddr end) const;
};

[[nodiscard]] References find_references(const ElfFile& file, const AddressRanges& ranges);

}  // namespace reprobe
