// The rules of `audit`: from probes and file to findings. docs/rules.md describes each.
#pragma once

#include <vector>

#include "libprobe/audit/kernels.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// All findings about the file, in stable order: the file's own, then by note offset. Rules about
// other kernels than `kernels` are left out.
[[nodiscard]] std::vector<Finding> audit(const ElfFile& file, const ProbeFile& probes,
                                         const Kernels& kernels = {});

// Those about counters that no tracer raises, for causes that only another link or `reprobe guards`
// can take away.
[[nodiscard]] std::vector<Finding> counters_beyond_repair(const ElfFile& file,
                                                          const ProbeFile& probes);

}  // namespace reprobe
