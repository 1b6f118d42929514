// Plans `reprobe fix --upgrade`: notes for the records of SystemTap up to 1.3, which today's
// tracers do not read. The records stay, with words that are distances from themselves
// (docs/legacy.md), so that the dynamic linker writes nothing into their section; calls of
// syscall() that are sites become nops.
#pragma once

#include <vector>

#include "libprobe/audit/legacy_probes.hpp"
#include "libprobe/rewrite/fix.hpp"

namespace reprobe {

inline constexpr std::string_view kUpgradeRule = repair::legacy_record;

struct UpgradePlan {
  // As plan_fix() gives it, and what it does with the new notes; a repair of kUpgradeRule for each.
  FixPlan fix;
  std::vector<Probe>
      probes;  // of the notes, as a reader of the output finds them, dangling ones too
};

// The plan is empty where the file has no records or has notes. Refused are records and calls that
// are left as they are. `options`: those of plan_fix(), which follows.
// Errors: refused, internal.
[[nodiscard]] Result<UpgradePlan> plan_upgrade(const ElfFile& file, const LegacyProbes& legacy,
                                               const FixOptions& options);

}  // namespace reprobe
