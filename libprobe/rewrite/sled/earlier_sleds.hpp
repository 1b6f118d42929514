// What a file with sleds was made of, so that `reprobe sled` can plan them anew: with more probes,
// or of another kind.
#pragma once

#include <set>

#include "libprobe/elf/file.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/sled/planner.hpp"

namespace reprobe {

struct EarlierSleds {
  ElfFile original;
  SledKind kind{};
  std::set<VirtAddr> sites;  // of the original that got sleds
};

// `file` has the undo record of sleds, `probes` are its probes. Errors: those of plan_undo() and
// ElfFile::open(), refused (the notes of both are not the same ones).
[[nodiscard]] Result<EarlierSleds> earlier_sleds(const ElfFile& file, const ProbeFile& probes);

}  // namespace reprobe
