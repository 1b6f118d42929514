// What the kernel does with a uprobe and its reference counter, whoever asks for them.
// Source: Linux 6.18, kernel/events/uprobes.c and the machines' arch_uprobe_analyze_insn.
#pragma once

#include <cstdint>
#include <string_view>

#include "libprobe/audit/consumers/facts.hpp"

namespace reprobe::consumers {

// Why the kernel refuses a uprobe at the probe's site, or never arms it; "" where it takes it.
[[nodiscard]] std::string_view uprobe_fault(const Facts& facts, std::size_t probe);

// Does the kernel refuse the attach for the sake of this ref_ctr_offset (uprobe_register: -EINVAL)?
[[nodiscard]] bool refuses_counter(std::uint64_t file_offset);

// Why the program's counter does not rise where the kernel is told to raise the one at
// `file_offset`; "" where it does.
[[nodiscard]] std::string_view counter_fault(const Facts& facts, std::size_t probe,
                                             std::uint64_t file_offset);

}  // namespace reprobe::consumers
