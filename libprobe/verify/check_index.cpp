#include "libprobe/verify/check_index.hpp"

#include <fmt/format.h>

#include "libprobe/notes/index.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

bool is_note(const IndexEntry& entry, const Probe& probe) {
  return entry.site == probe.note.location && entry.semaphore == probe.note.semaphore &&
         entry.provider == probe.note.provider && entry.name == probe.note.name &&
         entry.arguments == probe.note.arguments;
}

void report(std::string message, std::vector<Finding>& out) {
  out.push_back(verify_finding("verify-index", std::move(message)));
}

}  // namespace

void check_index(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  const auto place = find_index(file);
  if (!place) return;
  const auto index = read_index(file, *place);
  if (!index) return report(index.error().message, out);
  if (index->entries.empty()) return;
  const VirtAddr base = probes.base.value_or(VirtAddr{});
  if (index->base != base) {
    return report(fmt::format("base of the index; expected {:#x}, found {:#x}", base.value,
                              index->base.value),
                  out);
  }
  // Both have one order.
  auto next = index->entries.begin();
  for (const Probe& probe : probes.probes) {
    const bool known = next != index->entries.end() && is_note(*next, probe);
    if (known && probe.note.base == base) {
      ++next;
    } else if (known || (probe.verdict != Verdict::dangling && !index->partial)) {
      return report(fmt::format("{}:{} at {:#x} is not as the index says", probe.note.provider,
                                probe.note.name, probe.site.value),
                    out);
    }
  }
  if (next != index->entries.end()) {
    report(fmt::format("{}:{} at {:#x} is in the index and not among the notes, or not there",
                       next->provider, next->name, next->site.value),
           out);
  }
}

}  // namespace reprobe
