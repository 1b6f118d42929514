// Which function an address lies in: from .symtab, .dynsym and the FDEs of .eh_frame, so that
// stripped files are served too. All sites of a file are asked at once: one pass over the symbol
// table, and a binary search in .eh_frame_hdr per site instead of a walk over .eh_frame.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

// An address, and in ET_REL the section it is an offset of (0 elsewhere).
struct CodeAddress {
  VirtAddr address;
  std::uint32_t section{};
  auto operator<=>(const CodeAddress&) const = default;
};

struct Function {
  VirtAddr start;
  Size size;            // never 0: a symbol without size ends at the next symbol or section end
  bool size_guessed{};  // nothing states the size: it is such an end
  // Without the version ("@@V1"); "" where only an FDE knows the function. Names over 4096 bytes
  // are cut there and end in "...".
  std::string name;
  bool from_symbol{};
  bool from_fde{};  // an FDE starts at `start` (or, without a symbol, gives the range)
  // Different names of STT_FUNC and STT_GNU_IFUNC symbols with this very start, `name` included:
  // more than one where linkers folded identical code, or for aliases.
  std::uint32_t names_here{};
  bool thumb{};  // EM_ARM: bit 0 of the symbol's value, or a $t mapping symbol
  // An exception may enter it in its middle: its FDE names an LSDA, or the FDEs are not known.
  bool may_have_landing_pads{};
};

struct FunctionLookup {
  std::vector<std::optional<Function>> functions;  // one per address asked
  bool has_symtab{};  // .symtab is there: a function without a symbol is then telling
  // .eh_frame is there and was understood, and compilers describe every function of this machine
  // by default: so is one without an FDE.
  bool has_unwind{};
};

[[nodiscard]] FunctionLookup find_functions(const ElfFile& file,
                                            std::span<const CodeAddress> addresses);

}  // namespace reprobe
