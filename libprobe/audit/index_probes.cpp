#include "libprobe/audit/index_probes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "libprobe/audit/facts.hpp"
#include "libprobe/audit/verdict.hpp"
#include "libprobe/notes/index.hpp"

namespace reprobe {
namespace {

bool is_note(const IndexEntry& entry, const Probe& probe) {
  return entry.site == probe.note.location && entry.semaphore == probe.note.semaphore &&
         entry.provider == probe.note.provider && entry.name == probe.note.name &&
         entry.arguments == probe.note.arguments;
}

Probe probe_of(IndexEntry entry, VirtAddr base, FileOffset index, std::uint16_t machine) {
  Probe probe;
  probe.note.location = probe.site = entry.site;
  probe.note.base = base;
  probe.note.semaphore = probe.semaphore = entry.semaphore;
  probe.note.provider = std::move(entry.provider);
  probe.note.name = std::move(entry.name);
  probe.note.arguments = std::move(entry.arguments);
  probe.note.file_offset = index;
  probe.arguments = parse_arguments(probe.note.arguments, machine);
  return probe;
}

}  // namespace

std::optional<ProbeFile> read_index_probes(const ElfFile& file) {
  if (std::ranges::any_of(file.sections(), holds_notes)) return std::nullopt;
  const auto place = find_index(file);
  if (!place) return std::nullopt;
  auto index = read_index(file, *place);
  if (!index || index->entries.empty()) return std::nullopt;
  ProbeFile result;
  if (index->base.value != 0) result.base = index->base;
  for (IndexEntry& entry : index->entries) {
    result.probes.push_back(
        probe_of(std::move(entry), index->base, place->offset, file.header().machine));
  }
  gather_facts(file, result);
  judge(result, file.header());
  return result;
}

std::optional<std::string> index_contradiction(const ElfFile& file, const ProbeFile& probes) {
  const auto place = find_index(file);
  if (!place) return std::nullopt;
  const auto index = read_index(file, *place);
  if (!index) return index.error().message;
  if (index->entries.empty()) return std::nullopt;
  const VirtAddr base = probes.base.value_or(VirtAddr{});
  if (index->base != base) {
    return fmt::format("base; expected {:#x}, found {:#x}", base.value, index->base.value);
  }
  // Both have one order.
  auto next = index->entries.begin();
  for (const Probe& probe : probes.probes) {
    const bool known = next != index->entries.end() && is_note(*next, probe);
    if (known && probe.note.base == base) {
      ++next;
    } else if (known || (probe.verdict != Verdict::dangling && !index->partial)) {
      return fmt::format("{}:{} at {:#x} is not as the index says", probe.note.provider,
                         probe.note.name, probe.site.value);
    }
  }
  if (next == index->entries.end()) return std::nullopt;
  return fmt::format("{}:{} at {:#x} is in the index and not among the notes, or not there",
                     next->provider, next->name, next->site.value);
}

}  // namespace reprobe
