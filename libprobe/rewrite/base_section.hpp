// Where .stapsdt.base must stand for every tracer to compute the same byte: gdb needs the section;
// perf adds its file OFFSET minus note.base, so it must share the code's distance between address
// and offset (consumers.md, 2). It stands there as a header without contents of its own.
#pragma once

#include <optional>

#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/empty_section.hpp"

namespace reprobe {

// Where a new .stapsdt.base belongs; nothing where the file has the section, or no place does.
[[nodiscard]] std::optional<EmptyPlace> place_for_new_base(const ElfFile& file,
                                                           const ProbeFile& probes);

// The file's .stapsdt.base, where it must move: it has another distance than the code, is not
// allocated, or lies inside another section (where eu-strip fills what follows it with zeros).
[[nodiscard]] const Section* misplaced_base(const ElfFile& file, const ProbeFile& probes);

// Where misplaced_base() belongs; nothing where no place does.
[[nodiscard]] std::optional<EmptyPlace> place_for_base(const ElfFile& file, const ProbeFile& probes,
                                                       const Section& base);

}  // namespace reprobe
