#include "libprobe/audit/runs.hpp"

#include <algorithm>

namespace reprobe {
namespace {

// Notes looked at on each side. Accidental hits in live code are rare (about 1 of 150 measured), so
// most of these are proven dangling inside a dropped section. Two or three could rise around a live
// probe by chance, as offsets in the dropped functions before and behind it in the source.
constexpr std::size_t kReach = 24;
constexpr std::size_t kInsideNeeds = 8;
constexpr std::size_t kEdgeNeeds = 4;
// Neighbours in one section stand closer than this; notes of -ffunction-sections objects jump
// between small addends and real addresses, which are pages apart.
constexpr std::uint64_t kClose = 0x1000;

struct Side {
  std::size_t dead{};      // proven dangling notes in the unbroken rising (falling) sequence
  bool close{};            // the nearest of them is within kClose
  bool nearest_in_code{};  // and itself in an executable section: the run has reached text
};

// Walks from probe i in steps of `step` (+1, -1) as long as locations go on rising in that
// direction (falling for -1) within one note section.
Side walk(const std::vector<Probe>& probes, const std::vector<bool>& dead, std::size_t i,
          int step) {
  Side side;
  std::size_t at = i;
  for (std::size_t n = 0; n < kReach; ++n) {
    if (step < 0 ? at == 0 : at + 1 == probes.size()) break;
    const std::size_t next = step < 0 ? at - 1 : at + 1;
    const std::uint64_t here = probes[at].note.location.value;
    const std::uint64_t there = probes[next].note.location.value;
    if (probes[next].note.section != probes[at].note.section) break;
    if (step < 0 ? there >= here : there <= here) break;
    if (dead[next]) {
      if (side.dead == 0) {
        const std::uint64_t own = probes[i].note.location.value;
        side.close = (step < 0 ? own - there : there - own) < kClose;
        side.nearest_in_code = probes[next].facts.place == Place::executable;
      }
      ++side.dead;
    }
    at = next;
  }
  return side;
}

}  // namespace

std::vector<DeadRun> find_dead_runs(const std::vector<Probe>& probes,
                                    const std::vector<bool>& dead) {
  std::vector<DeadRun> runs(probes.size(), DeadRun::none);
  if (std::ranges::find(dead, true) == dead.end()) return runs;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    if (dead[i]) continue;
    const Side before = walk(probes, dead, i, -1);
    const Side after = walk(probes, dead, i, +1);
    if (before.close && after.close && before.dead >= kInsideNeeds && after.dead >= kInsideNeeds) {
      runs[i] = DeadRun::inside;
    } else if ((before.close && before.nearest_in_code && before.dead >= kEdgeNeeds) ||
               (after.close && after.nearest_in_code && after.dead >= kEdgeNeeds)) {
      runs[i] = DeadRun::one_sided;
    }
  }
  return runs;
}

}  // namespace reprobe
