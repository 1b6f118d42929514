#include "libprobe/verify/compare_slots.hpp"

#include <fmt/format.h>

#include <set>

#include "libprobe/notes/index.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/verify/flag_reader.hpp"
#include "libprobe/verify/slot_reading.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

void report(std::string rule, VirtAddr site, std::string_view what, std::vector<Finding>& out) {
  Finding finding = verify_finding(std::move(rule), fmt::format("{:#x} {}", site.value, what));
  finding.site = site.value;
  out.push_back(std::move(finding));
}

}  // namespace

void compare_slot_flags(const ElfFile& before, const CodeRanges& ranges, const FunctionFlow& flow,
                        std::span<const PassedSlot> passed, std::vector<Finding>& out) {
  std::set<VirtAddr> asked;
  for (const PassedSlot& slot : passed) {
    if (slot.keeps_flags || !asked.insert(slot.site).second) continue;
    if (FlagReader(before, ranges, flow).only_reads(0, slot.site)) continue;
    report("verify-code", slot.site, "has a sled that writes flags, which are used behind it", out);
  }
}

void compare_slots(const ElfFile& after, std::span<const PassedSlot> passed,
                   const std::map<VirtAddr, VirtAddr>& site_of_sled, std::vector<Finding>& out) {
  if (const auto wrong = wrong_slots(after)) {
    out.push_back(verify_finding("verify-segment", *wrong));
  }
  std::map<VirtAddr, VirtAddr> slot_of, site_of;
  for (const PassedSlot& slot : passed) {
    const bool same = slot_of.emplace(slot.site, slot.slot).first->second == slot.slot &&
                      site_of.emplace(slot.slot, slot.site).first->second == slot.site;
    if (!same) report("verify-code", slot.site, "shares a slot, or has several", out);
  }
  const auto place = find_index(after);
  const auto index = place ? read_index(after, *place) : Result<ProbeIndex>{};
  if (!slot_of.empty() && (!place || !index)) {
    out.push_back(verify_finding("verify-index", "no index leads to the slots"));
  }
  if (!place || !index) return;
  for (const IndexEntry& entry : index->entries) {
    const auto site = site_of_sled.find(entry.site);
    const auto slot = site == site_of_sled.end() ? slot_of.end() : slot_of.find(site->second);
    const VirtAddr expected = slot == slot_of.end() ? VirtAddr{} : slot->second;
    if (entry.slot != expected)
      report("verify-index", entry.site, "tests another slot than the index says", out);
  }
}

}  // namespace reprobe
