// Searches a whole file for what treats a few functions' code as data, or names an instruction in
// it by its address: rip-relative operands that read or write it, places that the loader relocates,
// tables of code that is patched at run time, distances in data sections. As in flow_scan.hpp this
// is a search over bytes, which finds too much rather than too little. x86-64 only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/flow_scan.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

enum class CodeUseKind : std::uint8_t {
  operand,   // four bytes that may be a rip-relative operand; source: its ModRM byte
  place,     // a relocation of the loader writes `size` bytes there
  patched,   // a table of code that is patched at run time names it; source: the table's word
  distance,  // a word of a data section holds its distance from the word; source: the word
};

struct CodeUse {
  VirtAddr target;
  VirtAddr source;
  Size size;  // of a place
  CodeUseKind kind{};
};

// All uses into the ranges, by target.
struct CodeUses {
  std::vector<CodeUse> found;
  // Something that may hold uses could not be read; empty where all was.
  std::string unread;

  // Those with targets in [first, end).
  [[nodiscard]] std::span<const CodeUse> into(VirtAddr first, VirtAddr end) const;
};

[[nodiscard]] CodeUses find_code_uses(const ElfFile& file, const AddressRanges& ranges);

}  // namespace reprobe
