// The address of the counter that each note should name, as far as the file proves it.
#pragma once

#include <vector>

#include "libprobe/probes/semaphore.hpp"
#include "libprobe/rewrite/repair_rules.hpp"

namespace reprobe {

struct SemaphoreValue {
  VirtAddr address;       // 0: none
  std::string_view rule;  // the repair that changes it; "" where it stays as the probe has it
  bool conflict{};        // another note of the probe names another counter still
};

// One for each probe. Pure: the same file and choice give the same values.
[[nodiscard]] std::vector<SemaphoreValue> wanted_semaphores(
    const ElfFile& file, const ProbeFile& probes, const std::vector<SemaphoreFacts>& facts,
    const RepairChoice& choice);

// Can the kernel raise a counter at the address: in bytes of the file in a writable, not executable
// segment, at an even offset?
[[nodiscard]] bool counter_works(const ElfFile& file, VirtAddr address);

}  // namespace reprobe
