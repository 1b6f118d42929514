// Puts .stapsdt.base where every tracer computes the same byte: on the last byte of .text, as a
// header without contents of its own. gdb needs the section; perf adds its file OFFSET minus
// note.base, so it must share text's distance between address and offset (consumers.md, 2).
#pragma once

#include <optional>

#include "libprobe/audit/probe.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

// The address that .stapsdt.base should have; nothing where it already is right or no section of
// code can hold it. BOLT crashes where the section starts at text's or its segment's first byte,
// and works with the last.
[[nodiscard]] std::optional<VirtAddr> wanted_base(const ElfFile& file, const ProbeFile& probes);

// Adds the section at `address`, or moves its header there. Errors: see SectionTable.
[[nodiscard]] Result<void> place_base(SectionTable& table, const ElfFile& file, VirtAddr address);

// Moves the symbols of a moved section with it (`_.stapsdt.base` and the section symbol).
[[nodiscard]] Result<void> move_base_symbols(Plan& plan, const ElfFile& file, VirtAddr address);

}  // namespace reprobe
