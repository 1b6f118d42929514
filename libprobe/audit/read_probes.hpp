// The probes of a file, each with its facts and its verdict.
#pragma once

#include "libprobe/audit/link_objects.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Reads the notes of a file and judges each. Never fails: what could not be read is in
// scan.findings and file.problems(). `objects`: the inputs of the link, which prove more than the
// file alone.
[[nodiscard]] ProbeFile read_probes(const ElfFile& file, const LinkObjects* objects = nullptr);

}  // namespace reprobe
