// Brings back the notes that a strip took from a file, from its separate debug file or from its
// unstripped twin: `fix --from-debug`. llvm-strip --strip-all and objcopy -R .note.stapsdt delete
// them; .stapsdt.base and .probes are loaded, so that they stay.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/fix.hpp"

namespace reprobe {

struct FromDebugPlan {
  // As plan_fix() gives it; a repair of the rule kFromDebugRule for each note that is brought back.
  // Refused are the notes that do not fit the file, too.
  FixPlan fix;
  // Those that are brought back, as a reader of the output finds them, then the dangling ones,
  // which are not: fix.removed. note.bytes is empty.
  std::vector<Probe> probes;
};

inline constexpr std::string_view kFromDebugRule = repair::notes_stripped;

// The notes of `debug` that are live in `file` by its own code, or stand at an instruction by the
// functions that `debug` names, in a new .note.stapsdt at the end of the file, and
// then what plan_fix() does. `selected`: which probes are wanted, all where it is empty. Where
// `file` has the same probes already the plan is empty.
// Errors: refused (another build-id or none, another layout, no section headers, notes that are not
// those of `debug`, a machine whose nop is not known), internal.
[[nodiscard]] Result<FromDebugPlan> plan_from_debug(
    const ElfFile& file, const ElfFile& debug,
    const std::function<bool(const Probe&)>& selected = {});

}  // namespace reprobe
