// What in a file can lead to a counter, found by verify itself: operands of instructions as Zydis
// reads them, words of data, the dynamic linker's relocations. x86-64 only.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {

// A counter has two bytes (sys/sdt.h, "unsigned short").
inline constexpr std::uint64_t kCounterBytes = 2;

// An instruction whose operand is a counter or has its address.
struct CounterOperand {
  X86Reading code;
  std::size_t counter{};  // index in the addresses that were asked for
  bool address{};         // it puts the address in a register; false: it accesses the counter
  // It puts the counter's distance from this address, that of the GOT (large code model).
  std::optional<VirtAddr> got;
};

// What else may lead there.
struct UnknownUse {
  std::size_t counter{};
  VirtAddr at;
  std::string what;
};

struct CounterReach {
  std::vector<CounterOperand> operands;  // by address of the instruction
  std::vector<UnknownUse> unknown;
};

// `counters`: addresses, ascending, each once.
[[nodiscard]] CounterReach read_counter_reach(const ElfFile& file, const CodeRanges& ranges,
                                              std::span<const VirtAddr> counters);

}  // namespace reprobe
