// Notes that a linker script put into a section of another name, where no tracer looks.
#pragma once

#include <optional>

#include "libprobe/rewrite/fix.hpp"

namespace reprobe {

struct OtherSectionPlan {
  ProbeFile probes;  // as they are in the result, before its repairs
  FixPlan fix;
};

// Writes the notes to .note.stapsdt, behind the file, and makes the other repairs of `options` at
// once. The section where they stood stays: it may be loaded. Nothing where no note stands in
// another section. Errors: of plan_fix(), and refused where the notes cannot be written.
[[nodiscard]] Result<std::optional<OtherSectionPlan>> plan_other_section(const ElfFile& file,
                                                                         const FixOptions& options);

}  // namespace reprobe
