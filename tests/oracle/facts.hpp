// What two readers are compared on: one line an item, written by the same code for both, so that
// equal lines mean equal readings.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reprobe::oracle {

using Lines = std::vector<std::string>;

// Names may hold anything; a line must stay one.
inline std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '\\')
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out;
}

struct SegmentFact {
  std::size_t index;
  std::uint64_t type, flags, offset, vaddr, paddr, filesz, memsz, align;

  std::string line() const {
    return fmt::format(
        "segment {}: type={:#x} flags={:#x} offset={:#x} vaddr={:#x} paddr={:#x} filesz={:#x} "
        "memsz={:#x} align={:#x}",
        index, type, flags, offset, vaddr, paddr, filesz, memsz, align);
  }
};

struct SectionFact {
  std::size_t index;
  std::string name;
  std::uint64_t type, flags, addr, offset, size, link, info, align, entsize;

  std::string line() const {
    return fmt::format(
        "section {}: name={} type={:#x} flags={:#x} addr={:#x} offset={:#x} size={:#x} link={} "
        "info={} align={:#x} entsize={:#x}",
        index, printable(name), type, flags, addr, offset, size, link, info, align, entsize);
  }
};

struct SymbolFact {
  std::string_view table;
  std::size_t index;
  std::string name;
  std::uint64_t value, size, type, binding, shndx;

  std::string line() const {
    return fmt::format("{} {}: name={} value={:#x} size={:#x} type={} binding={} shndx={:#x}",
                       table, index, printable(name), value, size, type, binding, shndx);
  }
};

}  // namespace reprobe::oracle
