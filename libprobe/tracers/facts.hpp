// What all consumers look at, worked out once per file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "libprobe/probes/probe.hpp"
#include "libprobe/probes/semaphore.hpp"

namespace reprobe::consumers {

class Facts {
 public:
  // Both must outlive the facts.
  Facts(const ElfFile& file, const ProbeFile& probes);

  const ElfFile& file;
  const std::vector<Probe>& probes;
  std::vector<SemaphoreFacts> semaphores;     // by probe
  std::vector<const Section*> note_sections;  // named .note.stapsdt, of any type
  const Section* base;                        // the first .stapsdt.base
  const Section* counters;                    // the first .probes

  // The probe whose note header stands there.
  [[nodiscard]] std::optional<std::size_t> probe_at(std::uint64_t file_offset) const;

  // A live probe, or one that may be: what a tracer should trace.
  [[nodiscard]] bool wanted(std::size_t probe) const;
  [[nodiscard]] bool dangling(std::size_t probe) const;

  // Probes of one provider:name, which most consumers attach together: group_of[probe] is an index
  // in `groups`, whose members are probes in note order.
  std::vector<std::size_t> group_of;
  std::vector<std::vector<std::size_t>> groups;

 private:
  std::unordered_map<std::uint64_t, std::size_t> by_offset_;
};

}  // namespace reprobe::consumers
