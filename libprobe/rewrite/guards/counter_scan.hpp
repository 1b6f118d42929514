// Where a file refers to its counters. All executable bytes are searched for operands that lead to
// one, at every offset, so that no boundary has to be known; then only the functions that hold a
// find are decoded. A library is not disassembled. x86-64 only.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

// An instruction that refers to a counter, or to the slot of the GOT that holds its address.
struct CounterReference {
  CodeInstruction code;
  std::size_t counter{};  // index in the addresses that were asked for
  // What the operand does with it. `memory`: the operand lies at the counter, or overlaps it.
  // `distance`: movabs of its distance from the GOT, `got` (the large code model).
  enum class How { memory, address, slot, immediate, distance } how{};
  VirtAddr got{};
};

// Something else that holds or may hold the address: nothing is known of what is done with it.
struct UnknownReference {
  std::size_t counter{};
  VirtAddr at;
  std::string what;  // stable words
};

struct CounterReferences {
  std::vector<CounterReference> found;    // by address of the instruction
  std::vector<UnknownReference> unknown;  // in any order
};

// `counters`: addresses, ascending, each once. What only start-up code (crtstuff.c's tables of
// transactional memory, which may begin where the counters do) computes with is left out.
[[nodiscard]] CounterReferences find_counter_references(const ElfFile& file,
                                                        const CodeRanges& ranges,
                                                        std::span<const VirtAddr> counters);

// Bytes of a counter.
inline constexpr std::uint64_t kCounterSize = 2;

}  // namespace reprobe
