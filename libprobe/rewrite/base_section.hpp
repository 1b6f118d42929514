// Puts .stapsdt.base where every tracer computes the same byte: on the last byte of .text, as a
// header without contents of its own. gdb needs the section; perf adds its file OFFSET minus
// note.base, so it must share text's distance between address and offset (consumers.md, 2).
#pragma once

#include <optional>

#include "libprobe/audit/probe.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

// The address that .stapsdt.base should have; nothing where the file has the section or no section
// of code can hold it. BOLT crashes where the section starts at text's or its segment's first byte,
// and works with the last.
[[nodiscard]] std::optional<VirtAddr> wanted_base(const ElfFile& file, const ProbeFile& probes);

// Adds the section's header at `address`. Errors: see SectionTable.
[[nodiscard]] Result<void> add_base(SectionTable& table, const ElfFile& file, VirtAddr address);

}  // namespace reprobe
