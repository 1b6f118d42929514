#include "libprobe/verify/compare_probes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/notes/respell.hpp"
#include "libprobe/verify/counter_values.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// What a tracer sees of a probe; equal ones cannot be told apart.
struct Seen {
  std::uint32_t section{};  // of the result
  std::string_view provider;
  std::string_view name;
  std::string arguments;
  VirtAddr site;
  VirtAddr semaphore;
  auto operator<=>(const Seen&) const = default;
};

Seen seen(const Probe& probe) {
  return {probe.note.section,   probe.note.provider, probe.note.name,
          probe.note.arguments, probe.site,          probe.semaphore};
}

// A probe of the input, and as which probes of the result it may be found again.
struct Old {
  const Probe* probe{};
  Seen seen;
  Seen repaired;  // with the counter that the file proves, and other spellings where asked for

  [[nodiscard]] bool is(const Seen& other) const { return other == seen || other == repaired; }
};

// By section, then by place: a section that moves behind another keeps its own order.
std::vector<const Probe*> by_section(const ProbeFile& file) {
  std::vector<const Probe*> probes;
  for (const Probe& probe : file.probes) probes.push_back(&probe);
  std::ranges::stable_sort(probes, {}, [](const Probe* probe) { return probe->note.section; });
  return probes;
}

// The probes of the input, by_section().
std::vector<Old> old_probes(const ElfFile& file, const ProbeFile& probes, const SectionMatch& match,
                            const CompareOptions& options) {
  const std::vector<VirtAddr> counters = proven_counters(file, probes);
  std::vector<Old> result;
  for (const Probe* probe : by_section(probes)) {
    Old old{probe, seen(*probe), {}};
    old.seen.section = match.notes != 0 ? match.notes : match.number(probe->note.section);
    old.repaired = old.seen;
    old.repaired.semaphore = counters[static_cast<std::size_t>(probe - probes.probes.data())];
    if (options.allow_respelled) {
      old.repaired.arguments = respell_arguments(old.seen.arguments, file.header().machine);
    }
    result.push_back(std::move(old));
  }
  return result;
}

Finding probe_finding(const Probe& probe, std::string rule, std::string message) {
  Finding result = verify_finding(std::move(rule), std::move(message));
  result.provider = probe.note.provider;
  result.name = probe.note.name;
  result.site = probe.site.value;
  result.note_offset = probe.note.file_offset.value;
  result.evidence = probe.evidence;
  return result;
}

// As many as must be kept of each kind are there. Of equal probes one may be removed and another
// not: it does not matter which.
void compare_kept(const std::vector<Old>& before, const ProbeFile& after,
                  const CompareOptions& options, std::vector<Finding>& out) {
  std::map<Seen, std::size_t> found;
  for (const Probe& probe : after.probes) ++found[seen(probe)];
  for (const Old& old : before) {
    const Verdict verdict = old.probe->verdict;
    const bool may_go = verdict == Verdict::dangling ||
                        (verdict == Verdict::ambiguous && options.allow_removed_ambiguous);
    if (may_go) continue;
    std::size_t& same = found[old.seen];
    std::size_t& left = same != 0 ? same : found[old.repaired];
    if (left == 0) {
      out.push_back(probe_finding(
          *old.probe, "verify-probe-lost",
          fmt::format("the probe was {} and is not in the result", to_string(verdict))));
    } else {
      --left;
    }
  }
}

// What tells a probe where its note may stand elsewhere.
using Known = std::tuple<std::string_view, std::string_view, std::string_view, VirtAddr, VirtAddr>;

Known known(const Probe& probe, VirtAddr semaphore) {
  return {probe.note.provider, probe.note.name, probe.note.arguments, probe.site, semaphore};
}

bool on_nop(const Probe& probe) {
  const NopKind kind = probe.facts.nop.kind;
  return kind == NopKind::nop || kind == NopKind::nop5 || kind == NopKind::nop10;
}

}  // namespace

void compare_probes(const ElfFile& before, const ProbeFile& probes, const SectionMatch& match,
                    const CompareOptions& options, const ProbeFile& after,
                    std::vector<Finding>& out) {
  const std::vector<Old> wanted = old_probes(before, probes, match, options);
  compare_kept(wanted, after, options, out);
  // Kept probes stand in the old order, so one walk over both lists pairs them.
  const std::vector<const Probe*> results = by_section(after);
  auto next = results.begin();
  for (const Old& old : wanted) {
    if (next != results.end() && old.is(seen(**next))) ++next;
  }
  if (next != results.end()) {
    out.push_back(probe_finding(**next, "verify-probe-added",
                                "the result has a probe that the input has not, or not there"));
  }
}

void compare_restored(const ProbeFile& source, const std::vector<VirtAddr>& counters, bool doubtful,
                      const ProbeFile& after, std::vector<Finding>& out) {
  auto next = after.probes.begin();
  for (std::size_t i = 0; i < source.probes.size() && next != after.probes.end(); ++i) {
    const Probe& probe = source.probes[i];
    const Known now = known(*next, next->semaphore);
    if (now != known(probe, probe.semaphore) &&
        (counters.empty() || now != known(probe, counters[i]))) {
      continue;
    }
    if (next->verdict != Verdict::live &&
        !(next->verdict == Verdict::ambiguous && (doubtful || on_nop(*next)))) {
      out.push_back(probe_finding(
          *next, "verify-probe-added",
          fmt::format("the restored probe is {} in the result", to_string(next->verdict))));
    }
    ++next;
  }
  if (next == after.probes.end()) return;
  out.push_back(probe_finding(*next, "verify-probe-added",
                              "the result has a probe that its source has not, or not there"));
}

void compare_with_index(const ElfFile& before, const ProbeFile& now, std::vector<Finding>& out) {
  const ProbeFile indexed = read_index_probes(before).value_or(ProbeFile{});
  compare_restored(indexed, proven_counters(before, indexed), true, now, out);
}

}  // namespace reprobe
