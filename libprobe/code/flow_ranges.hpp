// Pieces of code with known ends, from FDEs and symbols, and their decoded instructions.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "libprobe/code/decoder.hpp"
#include "libprobe/code/eh_frame.hpp"
#include "libprobe/code/x86_operands.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

struct CodeRange {
  VirtAddr start;
  VirtAddr end;  // exclusive

  [[nodiscard]] bool contains(VirtAddr a) const { return a >= start && a < end; }
};

// The part of a function that GCC (NAME.cold) or LLVM (NAME.cold, NAME.__part.N) put elsewhere.
[[nodiscard]] bool names_a_part(std::string_view name);

class CodeRanges {
 public:
  // Longer ones are not decoded.
  static constexpr std::uint64_t kLongest = std::uint64_t{1} << 20;

  // Nothing where the machine's code is not understood.
  [[nodiscard]] static std::optional<CodeRanges> open(const ElfFile& file);

  // The FDE that holds the address, or else the function symbol, or else what lies between those:
  // small functions of start-up code have neither FDE nor size.
  [[nodiscard]] std::optional<CodeRange> find(VirtAddr address) const;

  // A symbol says that a function starts here, and not a part of one.
  [[nodiscard]] bool is_function(VirtAddr address) const;

  // Code at the address that only jumps on through a pointer, as an entry of the procedure linkage
  // table does.
  [[nodiscard]] bool is_linkage(VirtAddr address) const;

  // Another file has the thunks through which the file jumps (-mindirect-branch=thunk-extern).
  [[nodiscard]] bool imports_thunks() const { return imports_thunks_; }

  // All instructions of the range, without gaps; nothing where one does not decode or crosses the
  // end, and where the range is too long.
  [[nodiscard]] std::optional<std::vector<CodeInstruction>> decode(const CodeRange& range) const;
  [[nodiscard]] std::optional<CodeInstruction> decode_at(VirtAddr address) const;

  [[nodiscard]] const std::optional<UnwindTable>& unwind() const { return unwind_; }

 private:
  struct SymbolRange {
    VirtAddr start;
    Size size;
    bool part{};
  };

  struct Gap {
    CodeRange range;
    std::optional<bool> decodes;  // once asked
  };

  CodeRanges(const ElfFile& file, Decoder decoder);
  [[nodiscard]] std::vector<Gap> find_gaps() const;
  void read_symbols();
  [[nodiscard]] std::optional<CodeRange> described(VirtAddr address) const;
  [[nodiscard]] std::optional<CodeRange> undescribed(VirtAddr address) const;

  const ElfFile* file_;
  Decoder decoder_;
  std::optional<UnwindTable> unwind_;
  bool imports_thunks_{};
  std::vector<SymbolRange> symbols_;  // of functions, by start
  // Between described code, by start; found when one is asked for.
  mutable std::optional<std::vector<Gap>> gaps_;
};

}  // namespace reprobe
