#include "libprobe/rewrite/guards/counters.hpp"

#include <algorithm>
#include <map>

namespace reprobe {
namespace {

// 90, and the first byte of the five-byte nop.
constexpr std::uint8_t kNopByte = 0x90, kNop5Byte = 0x0f;

// Can a load read the site? Code may be mapped for execution alone.
bool is_readable(const ElfFile& file, VirtAddr site) {
  const Segment* segment = file.load_segment(site);
  return segment != nullptr && (segment->flags & PF_R) != 0;
}

// More sites than this are not looked at by one check.
constexpr std::size_t kMostSites = 16;

// Does the site's first byte alone show whether it is armed?
bool is_plain_nop(const Probe& probe, std::uint8_t unarmed) {
  const NopKind kind = probe.facts.nop.kind;
  return (unarmed == kNopByte && kind == NopKind::nop) ||
         (unarmed == kNop5Byte && kind == NopKind::nop5);
}

// The other sites, none where one of them is not as the first.
std::vector<VirtAddr> other_sites(const ElfFile& file, const ProbeFile& probes,
                                  const GuardCounter& counter) {
  std::vector<VirtAddr> others;
  for (const std::size_t i : counter.probes) {
    const Probe& probe = probes.probes[i];
    const ByteView bytes = file.bytes_at(probe.site, Size{1});
    const bool same = !bytes.empty() && is_readable(file, probe.site) &&
                      std::to_integer<std::uint8_t>(bytes[0]) == counter.unarmed &&
                      is_plain_nop(probe, counter.unarmed);
    if (!same) return {};
    if (probe.site != counter.site) others.push_back(probe.site);
  }
  std::ranges::sort(others);
  others.erase(std::unique(others.begin(), others.end()), others.end());
  return others.size() < kMostSites ? others : std::vector<VirtAddr>{};
}

// Sets site, unarmed and others, or gives why not.
std::string look_at(const ElfFile& file, const ProbeFile& probes, GuardCounter& counter) {
  const Probe& first = probes.probes[counter.probes.front()];
  for (const std::size_t i : counter.probes) {
    const Note& note = probes.probes[i].note;
    if (note.provider != first.note.provider || note.name != first.note.name) {
      return "several probes share the counter, and the site of one does not show the others";
    }
    if (probes.probes[i].verdict != Verdict::live) return "a note that is not live";
  }
  counter.site = first.site;
  const ByteView bytes = file.bytes_at(first.site, Size{1});
  if (bytes.empty() || !is_readable(file, first.site)) return "the site cannot be read";
  counter.unarmed = std::to_integer<std::uint8_t>(bytes[0]);
  counter.others = other_sites(file, probes, counter);
  if (is_plain_nop(first, counter.unarmed)) return "";
  // libbpf attaches to the long nop behind the first byte (usdt.c): that byte then stays.
  if (counter.unarmed == kNopByte) return "a tracer may arm the nop behind the site's first byte";
  return "the site is no nop that a probe has";
}

}  // namespace

std::vector<GuardCounter> read_counters(const ElfFile& file, const ProbeFile& probes,
                                        const std::function<bool(const Probe&)>& selected) {
  std::map<VirtAddr, GuardCounter> by_address;
  std::map<VirtAddr, bool> wanted;
  for (std::size_t i = 0; i < probes.probes.size(); ++i) {
    const Probe& probe = probes.probes[i];
    if (probe.semaphore.value == 0) continue;
    GuardCounter& counter = by_address[probe.semaphore];
    counter.address = probe.semaphore;
    counter.probes.push_back(i);
    counter.sites.push_back(probe.site);
    wanted[probe.semaphore] |= !selected || selected(probe);
  }
  std::vector<GuardCounter> counters;
  for (auto& [address, counter] : by_address) {
    if (!wanted[address]) continue;
    std::ranges::sort(counter.sites);
    counter.reason = look_at(file, probes, counter);
    counters.push_back(std::move(counter));
  }
  return counters;
}

}  // namespace reprobe
