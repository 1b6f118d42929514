#include "libprobe/audit/sled_origin.hpp"

#include <algorithm>

#include "libprobe/rewrite/planned_source.hpp"
#include "libprobe/rewrite/sled/undo.hpp"

namespace reprobe {
namespace {

bool same_probe(const Probe& a, const Probe& b) {
  return a.note.provider == b.note.provider && a.note.name == b.note.name;
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
  if (!std::ranges::equal(original.probes, probes.probes, same_probe)) return;
  for (std::size_t i = 0; i < probes.probes.size(); ++i) {
    Probe& probe = probes.probes[i];
    const Probe& old = original.probes[i];
    const bool moved = probe.section == kSledSection;
    if (moved) probe.origin = SledOrigin{old.site, old.facts.function};
    if ((moved || probe.site == old.site) && is_whole(probe.facts.nop.kind, old.facts.nop.kind)) {
      probe.verdict = old.verdict;
      probe.evidence = old.evidence;
      probe.alias_count = old.alias_count;
      probe.alias_of = old.alias_of;
    }
  }
}

}  // namespace reprobe
