// What the kernel does with a uprobe and its reference counter, whoever asks for them.
// Source: Linux 6.18, kernel/events/uprobes.c and the machines' arch_uprobe_analyze_insn.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "libprobe/tracers/facts.hpp"

namespace reprobe::consumers {

// Why the kernel refuses a uprobe at the probe's site, or never arms it; "" where it takes it.
[[nodiscard]] std::string_view uprobe_fault(const Facts& facts, std::size_t probe);

// Does the kernel refuse the attach for the sake of this ref_ctr_offset (uprobe_register: -EINVAL)?
[[nodiscard]] bool refuses_counter(std::uint64_t file_offset);

// alloc_uprobe(): one instruction has one counter, and none is one of its own. Remembers the first
// of each instruction.
class Counters {
 public:
  // Is it another one than an earlier note's? `counter` 0: none.
  [[nodiscard]] bool conflict(std::uint64_t site, std::uint64_t counter) {
    return first_.try_emplace(site, counter).first->second != counter;
  }

 private:
  std::unordered_map<std::uint64_t, std::uint64_t> first_;
};

// Does the note name another counter than the one that the program reads, as far as the symbol
// PROVIDER_NAME_semaphore tells? Then no consumer that goes by the note raises it. "" where not.
[[nodiscard]] std::string_view field_fault(const Facts& facts, std::size_t probe);

// Why the program's counter does not rise where the kernel is told to raise the one at
// `file_offset`; "" where it does.
[[nodiscard]] std::string_view counter_fault(const Facts& facts, std::size_t probe,
                                             std::uint64_t file_offset);

}  // namespace reprobe::consumers
