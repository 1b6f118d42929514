#include "libprobe/audit/sled_origin.hpp"

#include <algorithm>

#include "libprobe/rewrite/planned_source.hpp"
#include "libprobe/rewrite/sled/undo.hpp"

namespace reprobe {
namespace {

bool is_sled(const Probe& probe) { return probe.section == kSledSection; }

bool same_probe(const Probe& a, const Probe& b) {
  return a.note.provider == b.note.provider && a.note.name == b.note.name;
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

void find_origins(const ElfFile& file, ProbeFile& probes) {
  if (std::ranges::none_of(probes.probes, is_sled)) return;
  const auto original = OriginalFile::of(file);
  if (!original) return;
  const ProbeFile old = read_sites(original->elf());
  if (!std::ranges::equal(old.probes, probes.probes, same_probe)) return;
  std::vector<CodeAddress> addresses;
  std::vector<std::size_t> sleds;
  for (std::size_t i = 0; i < old.probes.size(); ++i) {
    if (!is_sled(probes.probes[i])) continue;
    addresses.push_back({old.probes[i].site, 0});
    sleds.push_back(i);
  }
  // The functions of the file: the same as the original's, and nothing is read twice.
  FunctionLookup lookup = find_functions(file, addresses);
  for (std::size_t k = 0; k < sleds.size(); ++k) {
    probes.probes[sleds[k]].origin =
        SledOrigin{addresses[k].address, std::move(lookup.functions[k])};
  }
}

}  // namespace reprobe
