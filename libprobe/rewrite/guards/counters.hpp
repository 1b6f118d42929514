// The counters ("semaphores") of a file with their probes, and the byte of the code that tells the
// same: a probe's site stops being a nop while anybody traces it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

struct GuardCounter {
  VirtAddr address;
  std::vector<std::size_t> probes;  // of ProbeFile::probes, in note order; not empty
  std::vector<VirtAddr> sites;      // of these, ascending
  // Of the first note: what the checks look at, and its byte while nobody traces.
  VirtAddr site;
  std::uint8_t unarmed{};
  // The sites of the other notes, ascending, where a check may look at all of them.
  std::vector<VirtAddr> others;
  // Why the checks cannot look there, in stable words; "" where they can.
  std::string reason;
};

// By address. Counters of which `selected` takes no probe are left out; all stay where it is empty.
[[nodiscard]] std::vector<GuardCounter> read_counters(
    const ElfFile& file, const ProbeFile& probes,
    const std::function<bool(const Probe&)>& selected);

}  // namespace reprobe
