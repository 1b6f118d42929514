// A function and the code that is one function with it: the parts that a compiler put elsewhere.
// They are told by the jumps between them. What may be a part counts as one: a function that is
// only tail-called, in a file without symbols, too.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "libprobe/code/code_uses.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/code/flow_scan.hpp"

namespace reprobe {

struct FunctionParts {
  // Targets in the function, in any order, except those of its own direct jumps.
  std::vector<CodeTarget> targets;
  std::vector<KeptCode> kept;
  bool holds_data{};           // FunctionFlow::holds_data
  std::string why_incomplete;  // empty: nothing is missing
};

// What is known when the parts are looked for.
struct PartsQuestion {
  CodeRange range;                        // of the function
  std::span<const CodeInstruction> code;  // of the range, not empty
  std::span<const Reference> references;  // into the range, start and end included
  std::span<const CodeUse> uses;          // into the range
  // The function's start is reached by calls or through pointers; false: it may be a part itself.
  bool entered_by_calls{};
  // What may still be decoded and read, in bytes; reduced by what was. Parts and tables of a sane
  // file are shared by few functions, so that its size is a fair measure.
  std::uint64_t* budget{};
  // Of functions that are called, whether they return elsewhere, once that is known.
  std::map<VirtAddr, bool>* callees{};
};

[[nodiscard]] FunctionParts find_parts(const ElfFile& file, const CodeRanges& ranges,
                                       const PartsQuestion& question);

}  // namespace reprobe
