// The records of SystemTap up to 1.3 as probes, judged as notes are. Where a file has notes, or an
// empty section for them, there are none: no reader looks at both.
#pragma once

#include <vector>

#include "libprobe/audit/legacy_calls.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/notes/legacy.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

struct LegacyProbes {
  LegacyScan scan;
  LegacyCalls calls;
  // In the section's order. A record whose site is a call has one for each call that was found, or
  // a single one without a site, verdict unknown. `note` says what the record says; where the form
  // has no provider it is kLegacyProvider.
  ProbeFile file;
  std::vector<std::size_t> record;  // of each probe, in scan.records

  [[nodiscard]] bool found() const { return !scan.records.empty(); }
};

[[nodiscard]] LegacyProbes read_legacy(const ElfFile& file);

// Rules: legacy-record, legacy-unreadable, legacy-call; dangling and ambiguous of the records'
// sites.
[[nodiscard]] std::vector<Finding> audit_legacy(const LegacyProbes& probes);

}  // namespace reprobe
