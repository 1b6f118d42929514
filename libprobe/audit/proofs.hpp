// What proves that a note is dangling, each by itself: docs/verdicts.md says why. "" where nothing
// is proven.
#pragma once

#include <string>
#include <unordered_set>

#include "libprobe/audit/note_order.hpp"
#include "libprobe/probes/probe.hpp"

namespace reprobe {

// "function+0x5", or the address where no function is known.
[[nodiscard]] std::string spot(const Probe& probe);

// A note without a name is no probe that anybody wrote: it is more likely read wrongly.
[[nodiscard]] bool is_nameless(const Probe& probe);

// Of one file; `file` must outlive it and its facts must be complete.
class Proofs {
 public:
  Proofs(const ProbeFile& file, bool relocatable);

  // From the address or the kept relocation alone.
  [[nodiscard]] std::string by_address(const Probe& probe) const;
  // The site is inside another instruction. Only for a file from which code may have been dropped.
  [[nodiscard]] std::string by_boundary(const Probe& probe) const;
  // No nop is there, and the note is not where its place among the live ones says. Only for a file
  // from which code was dropped for certain.
  [[nodiscard]] std::string by_missing_nop(const Probe& probe, NoteOrder order, DeadRun run) const;

 private:
  [[nodiscard]] bool address_in_doubt(const Probe& probe) const;
  [[nodiscard]] bool bytes_tell(const Probe& probe) const;

  const ProbeFile& file_;
  bool relocatable_;
  // Names of sections that are not marked executable, hold a nop of a known function, and are
  // mapped as code: their mark was lost.
  std::unordered_set<std::string> unmarked_code_;
};

}  // namespace reprobe
