// The rules of `audit`: from probes and file to findings. docs/rules.md describes each.
#pragma once

#include <vector>

#include "libprobe/finding.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// All findings about the file, in stable order: the file's own, then by note offset.
[[nodiscard]] std::vector<Finding> audit(const ElfFile& file, const ProbeFile& probes);

}  // namespace reprobe
