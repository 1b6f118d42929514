// Notes of one object are contiguous in the output and follow the order of its code (the compiler
// emits both side by side, linkers concatenate). A note between proven dangling ones whose
// addresses go on rising through it most likely comes from the same dropped section.
#pragma once

#include <cstddef>
#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

enum class DeadRun {
  none,
  one_sided,  // at the edge of such a run, close to it
  inside,     // at least eight proven dangling notes on each side, rising through it, close by
};

// `dead[i]`: probe i is proven dangling. One answer per probe; `none` for the dead ones.
[[nodiscard]] std::vector<DeadRun> find_dead_runs(const std::vector<Probe>& probes,
                                                  const std::vector<bool>& dead);

}  // namespace reprobe
