// The probes of a file, each with its facts and its verdict.
#pragma once

#include <optional>

#include "libprobe/audit/link_objects.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// Reads the notes of a file and judges each. Never fails: what could not be read is in
// scan.findings and file.problems(). `objects`: the inputs of the link, which prove more than the
// file alone.
[[nodiscard]] ProbeFile read_probes(const ElfFile& file, const LinkObjects* objects = nullptr);

// The probes whose notes stand in sections of another name (scan_other_sections), each judged as
// others are. Nothing where there are none.
[[nodiscard]] std::optional<ProbeFile> read_other_sections(const ElfFile& file);

}  // namespace reprobe
