// Control flow of the functions that hold probe sites: their instructions, and every address in
// them at which control may arrive other than from the instruction before. A library is not
// disassembled: what can lead into these functions is found by scans that look for addresses.
//
// Why no target is missed. Code reaches the middle of a function only over its address, and that
// stands somewhere in the file:
//  - in a relative branch or a rip-relative lea, of the function or of any other code. All
//    executable bytes are searched for them at every offset, so no boundary has to be known;
//  - as an absolute word: in a relocation (RELATIVE, symbol + addend, RELR), in ET_EXEC also in any
//    bytes that are loaded, immediates included;
//  - as a symbol, the start of an FDE, a landing pad of an LSDA;
//  - as an offset from a base: jump tables, and the difference of two labels. Each indirect jump of
//    the function, and of the code it is one function with (its cold parts), has to be a decoded
//    table or to take a whole pointer from memory, a caller or a callee, which is one of the above.
//    Where one is neither, the function is not `complete`.
// False targets cost coverage only, so wherever it is one or the other, it is a target.
//
// What that takes for granted: compilers add a jump table's base to its entry in a register and
// jump at once, do not keep that sum in memory; a part of a function that is reached only through a
// table or an LSDA of another part is told by a symbol, an FDE or a jump; nobody resumes a thread
// at an address that stands in the file only as an offset from something (a fault table of
// self-relative words, say). Return addresses are no targets of their own: they follow a call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/functions.hpp"
#include "libprobe/code/kept_code.hpp"
#include "libprobe/code/x86_operands.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// How an address is a target: a set of bits, since it may be many.
using TargetKinds = std::uint32_t;
inline constexpr TargetKinds kTargetEntry = 1U << 0,  // the function's start
    kTargetBranch = 1U << 1,                          // a direct branch of the function
    kTargetForeign = 1U << 2,                         // of other code: a cold part, a caller
    kTargetTable = 1U << 3,                           // a jump table
    kTargetLandingPad = 1U << 4,                      // an LSDA
    kTargetSymbol = 1U << 5,                          // a symbol of any type
    kTargetFde = 1U << 6,                             // an FDE starts here
    kTargetRelocation = 1U << 7,                      // a dynamic relocation gives it
    kTargetWord = 1U << 8,                            // ET_EXEC: a word that holds it
    kTargetLea = 1U << 9,                             // a rip-relative lea
    kTargetEndbr = 1U << 10,                          // endbr64 stands here
    kTargetSite = 1U << 11,                           // a probe site
    kTargetDistance = 1U << 12;                       // what a word of data counts from itself

struct CodeTarget {
  VirtAddr address;
  TargetKinds kinds{};
};

// "branch, table"; for messages.
[[nodiscard]] std::string target_names(TargetKinds kinds);

struct FunctionFlow {
  Function function;
  // All of [start, start+size), in order, without gaps, and then the padding. Empty where not every
  // byte decodes.
  std::vector<CodeInstruction> code;
  // Nops and int3 behind the function's end up to the next thing known there (a symbol, an FDE, a
  // target, other bytes); part of `code`. Control arrives there only if the function's last
  // instruction falls through.
  Size padding;
  // Ascending, in [start, start+size+padding). Not only at instruction starts: a jump over a lock
  // prefix, a false target.
  std::vector<CodeTarget> targets;
  KeptRanges kept;
  // Data may stand among the code: filler behind a block's end may be some of it.
  bool holds_data{};
  // All targets are known. Where false, only what needs no knowledge of them is safe.
  bool complete{};
  std::string why_incomplete;  // "indirect jump at 0x1234 that was not understood"

  [[nodiscard]] VirtAddr end() const { return {function.start.value + function.size.value}; }
  // The kinds, 0 where it is no target. O(log n).
  [[nodiscard]] TargetKinds target(VirtAddr address) const;
  // A target in (after, before), exclusive on both sides? O(log n).
  [[nodiscard]] bool target_between(VirtAddr after, VirtAddr before) const;
  // By index in `code`: nops and int3 behind the end of a block to which no way is known.
  [[nodiscard]] std::vector<bool> unreached_filler() const;
  // Those of them that are nothing else: none where not all targets are known, or data may stand
  // among the code.
  [[nodiscard]] std::vector<bool> dead_filler() const;
  // The instruction that starts there; nullptr where none does. O(log n).
  [[nodiscard]] const CodeInstruction* at(VirtAddr address) const;
};

class FlowReader {
 public:
  // Reads what is to be known of the whole file, once: symbols, FDEs, relocations, the scans.
  // `sites` are all probe sites of the file, in any order. `file` outlives the reader.
  // Errors: refused (not x86-64, ET_REL, no section headers).
  [[nodiscard]] static Result<FlowReader> open(const ElfFile& file,
                                               std::span<const VirtAddr> sites);
  FlowReader(FlowReader&&) noexcept;
  FlowReader& operator=(FlowReader&&) noexcept;
  ~FlowReader();

  // The function of one of the sites. Decoded anew each time: ask once per function
  // (function.start is its name), and keep what is needed.
  // Errors: refused (the site lies in no known function, or was not among open()'s).
  [[nodiscard]] Result<FunctionFlow> function_of(VirtAddr site) const;

  // The functions of all sites, each once, by start.
  [[nodiscard]] std::span<const Function> functions() const;

 private:
  struct State;
  explicit FlowReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reprobe
