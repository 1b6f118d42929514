// Consumers written in Go attach each note by itself, at the file offsets that they compute.
#pragma once

#include <cstdint>
#include <optional>

#include "libprobe/tracers/kernel.hpp"
#include "libprobe/tracers/rules.hpp"

namespace reprobe::consumers {

// An address moved by the difference between .stapsdt.base and note.base, where neither is 0.
[[nodiscard]] std::uint64_t moved_by_base(const Facts& facts, const Seen& seen,
                                          std::uint64_t address);

// The file offset of an address in the first PT_LOAD that holds it in memory.
[[nodiscard]] std::optional<std::uint64_t> offset_in_load(const Facts& facts,
                                                          std::uint64_t address);

// What becomes of a probe whose uprobe is put there, with this counter's offset.
void attach_alone(const Facts& facts, std::size_t probe, std::uint64_t site,
                  std::optional<std::uint64_t> counter, Counters& counters, Report& report);

// The first argument of the text that `rule` does not read where it stands alone.
[[nodiscard]] std::optional<ArgumentFault> each_argument(std::string_view text,
                                                         std::uint16_t machine, ArgumentRule* rule);

}  // namespace reprobe::consumers
