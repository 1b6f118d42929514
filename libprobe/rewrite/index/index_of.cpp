#include "libprobe/rewrite/index/index_of.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "libprobe/rewrite/plain_notes.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> refuse_index(std::string why, std::string hint) {
  return fail(ErrorCode::refused, std::string(kStapsdtSection), std::move(why), std::move(hint));
}

SiteKind kind_of(const Probe& probe) {
  const bool sled = probe.section == kSledSection;
  switch (probe.facts.nop.kind) {
    case NopKind::nop:
      return SiteKind::nop;
    case NopKind::nop5:
      return sled ? SiteKind::sled_nop5 : SiteKind::nop5;
    case NopKind::nop10:
      if (sled && probe.facts.slot) return SiteKind::sled_slot;
      return sled ? SiteKind::sled_nop10 : SiteKind::nop10;
    case NopKind::none:
    case NopKind::other:
      break;
  }
  return SiteKind::other;
}

IndexEntry entry_of(const Probe& probe) {
  IndexEntry entry;
  entry.site = probe.site;
  entry.semaphore = probe.semaphore;
  entry.kind = kind_of(probe);
  if (entry.kind == SiteKind::sled_slot) entry.slot = *probe.facts.slot;
  if (entry.kind != SiteKind::other) {
    entry.size = static_cast<std::uint16_t>(probe.facts.nop.size);  // at most kLongestNop
    entry.resume = {probe.site.value + probe.facts.nop.size};
  }
  entry.provider = probe.note.provider;
  entry.name = probe.note.name;
  entry.arguments = probe.note.arguments;
  return entry;
}

// Would a note that states the entry's addresses be this one?
bool can_be_given_back(const Probe& probe, VirtAddr base) {
  return probe.note.location == probe.site && probe.note.semaphore == probe.semaphore &&
         probe.note.base == base && probe.site.value != 0;
}

}  // namespace

Result<ProbeIndex> index_of(const ElfFile& file, const ProbeFile& probes,
                            const std::function<bool(const Probe&)>& selected) {
  if (const auto notes = plain_notes(file, probes); !notes) return tl::unexpected(notes.error());
  ProbeIndex index;
  index.base = probes.base.value_or(VirtAddr{});
  for (const Probe& probe : probes.probes) {
    if (probe.verdict == Verdict::dangling) continue;
    if (selected && !selected(probe)) {
      index.partial = true;
      continue;
    }
    if (probe.verdict == Verdict::unknown) {
      return probes.machine_known
                 ? refuse_index("the code of the probes is not in this file", "")
                 : refuse_index(
                       fmt::format("what a site looks like on {} is not known, so that none is "
                                   "proven to be its probe's",
                                   machine_name(file.header().machine)),
                       "");
    }
    if (!can_be_given_back(probe, index.base)) {
      return refuse_index("notes that state other addresses than the file's own",
                          "run reprobe fix first");
    }
    index.entries.push_back(entry_of(probe));
  }
  return index;
}

bool same_notes(const ProbeIndex& a, const ProbeIndex& b) {
  const auto note = [](const IndexEntry& entry) {
    return std::tie(entry.site, entry.semaphore, entry.provider, entry.name, entry.arguments);
  };
  return a.partial == b.partial && a.base == b.base &&
         std::ranges::equal(a.entries, b.entries, {}, note, note);
}

}  // namespace reprobe
