#include "libprobe/verify/check_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

void report(std::string message, std::vector<Finding>& out) {
  out.push_back(verify_finding("verify-index", std::move(message)));
}

Result<ByteView> bytes_of(const ElfFile& file, const IndexPlace& place) {
  return file.source().slice(place.offset, place.size, "the index");
}

// Has the file that very index, at the same place?
bool has_same(const ElfFile& before, const IndexPlace& place, ByteView now) {
  const auto old = find_index(before);
  if (!old || old->address != place.address) return false;
  const auto bytes = bytes_of(before, *old);
  return bytes && std::ranges::equal(*bytes, now);
}

bool says_the_nop(const IndexEntry& entry, const Probe& probe) {
  constexpr std::array<const char*, 8> kNames{"other",     "nop",        "nop5",      "nop10",
                                              "sled-nop5", "sled-nop10", "sled-call", "sled-slot"};
  if (entry.slot != probe.facts.slot.value_or(VirtAddr{})) return false;
  const std::string kind = site_kind(probe);
  if (entry.kind == SiteKind::other) {
    return (kind == "other" || kind == "sled-other") && entry.size == 0 && entry.resume.value == 0;
  }
  return kind == kNames[static_cast<std::size_t>(entry.kind)] &&
         entry.size == probe.facts.nop.size && entry.resume.value == entry.site.value + entry.size;
}

// Entries are notes in their order: index_contradiction() has found nothing.
void check_sites(const ProbeIndex& index, const ProbeFile& probes, std::vector<Finding>& out) {
  auto probe = probes.probes.begin();
  for (const IndexEntry& entry : index.entries) {
    while (probe != probes.probes.end() &&
           (probe->site != entry.site || probe->note.name != entry.name ||
            probe->note.provider != entry.provider)) {
      ++probe;
    }
    if (probe == probes.probes.end() || !says_the_nop(entry, *probe)) {
      return report(
          fmt::format("what stands at {:#x} is not what the index says", entry.site.value), out);
    }
    ++probe;
  }
}

}  // namespace

void check_index(const ElfFile& before, const ElfFile& after, const ProbeFile& probes,
                 std::vector<Finding>& out) {
  const auto place = find_index(after);
  const auto old = find_index(before);
  if (old && (!place || place->address != old->address || place->size != old->size)) {
    return report(fmt::format("the index at {:#x} is not there any more", old->address.value), out);
  }
  const auto bytes = place ? bytes_of(after, *place) : Result<ByteView>{};
  if (!place || !bytes) return;
  // Notes that are gone can be written from it.
  const bool has_notes = std::ranges::any_of(after.sections(), holds_notes);
  if (auto why = has_notes ? index_contradiction(after, probes) : std::nullopt) {
    return report(std::move(*why), out);
  }
  if (has_same(before, *place, *bytes)) return;
  const auto index = read_index(after, *place);
  if (!index) return report(index.error().message, out);
  const auto written = encode_index(*index, place->address, place->size, after.header());
  if (!written || !std::ranges::equal(*written, *bytes)) {
    return report("the index has bytes that say nothing", out);
  }
  check_sites(*index, probes, out);
  const auto listed = std::ranges::count_if(
      probes.probes, [](const Probe& probe) { return probe.verdict != Verdict::dangling; });
  if (has_notes && index->partial && std::cmp_equal(index->entries.size(), listed)) {
    report("the index says that it lacks probes, and it lacks none", out);
  }
}

}  // namespace reprobe
