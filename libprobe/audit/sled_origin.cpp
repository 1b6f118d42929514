#include "libprobe/audit/sled_origin.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "libprobe/plan/planned_source.hpp"
#include "libprobe/plan/undo.hpp"

namespace reprobe {
namespace {

bool same_probe(const Probe& a, const Probe& b) {
  return a.note.provider == b.note.provider && a.note.name == b.note.name;
}

// The probe of the original that each probe is; nothing where they do not correspond. Both have one
// order, and only notes that are not live may be gone (reprobe fix).
std::vector<std::size_t> find_origins(const ProbeFile& probes, const ProbeFile& original) {
  std::vector<std::size_t> origins;
  std::size_t next = 0;
  for (const Probe& probe : probes.probes) {
    const auto is_origin = [&](const Probe& old) {
      const bool moved = probe.section == kSledSection;
      return same_probe(old, probe) &&
             (moved ? old.verdict == Verdict::live : old.site == probe.site);
    };
    while (next < original.probes.size() && !is_origin(original.probes[next])) {
      if (original.probes[next].verdict == Verdict::live) return {};
      ++next;
    }
    if (next == original.probes.size()) return {};
    origins.push_back(next++);
  }
  const auto left = std::span(original.probes).subspan(next);
  const bool all =
      std::ranges::none_of(left, [](const Probe& old) { return old.verdict == Verdict::live; });
  return all ? origins : std::vector<std::size_t>{};
}

// Is the site still there, as a sled or as what it was?
bool is_whole(NopKind now, NopKind old) {
  return now == old || now == NopKind::nop || now == NopKind::nop5 || now == NopKind::nop10;
}

}  // namespace

std::unique_ptr<const OriginalFile> OriginalFile::of(const ElfFile& file) {
  auto plan = read_undo(file);
  if (!plan) return nullptr;
  std::unique_ptr<OriginalFile> original(new OriginalFile(std::move(*plan)));
  auto elf = ElfFile::open(planned_source(file.source(), original->plan_));
  if (!elf) return nullptr;
  original->elf_.emplace(std::move(*elf));
  return original;
}

void take_origins(ProbeFile& probes, const ProbeFile& original) {
  const auto origins = find_origins(probes, original);
  for (std::size_t i = 0; i < origins.size(); ++i) {
    Probe& probe = probes.probes[i];
    const Probe& old = original.probes[origins[i]];
    const bool moved = probe.section == kSledSection;
    if (moved) probe.origin = SledOrigin{old.site, old.facts.function};
    if (!is_whole(probe.facts.nop.kind, old.facts.nop.kind)) continue;
    probe.verdict = old.verdict;
    probe.evidence = old.evidence;
  }
}

}  // namespace reprobe
