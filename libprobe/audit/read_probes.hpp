// The probes of a file, each with its facts and its verdict.
#pragma once

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Reads the notes of a file and judges each. Never fails: what could not be read is in
// scan.findings and file.problems().
[[nodiscard]] ProbeFile read_probes(const ElfFile& file);

}  // namespace reprobe
