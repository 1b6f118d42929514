#include "libprobe/rewrite/semaphore_values.hpp"

#include <map>
#include <tuple>

namespace reprobe {
namespace {

// The symbol PROVIDER_NAME_semaphore, where a counter can be.
std::optional<VirtAddr> counter_symbol(const ElfFile& file, const SemaphoreFacts& facts) {
  return facts.symbol && counter_works(file, *facts.symbol) ? facts.symbol : std::nullopt;
}

// sys/sdt.h puts counters there; a symbol elsewhere may be another kind of semaphore.
bool symbol_in_probes(const ElfFile& file, VirtAddr address) {
  const Section* section = file.section_containing(address);
  return section != nullptr && section->name == kProbesSection;
}

SemaphoreValue value_for(const ElfFile& file, const SemaphoreFacts& facts,
                         const RepairChoice& choice) {
  const auto symbol = counter_symbol(file, facts);
  if (facts.address.value == 0) {
    const bool named = symbol && symbol_in_probes(file, *symbol);
    if (named && choice.wants(repair::semaphore_undefined)) {
      return {*symbol, repair::semaphore_undefined, false};
    }
  } else if (points_nowhere(facts) && choice.wants(repair::semaphore_dangling)) {
    // libbpf refuses to attach and bpftrace lists nothing of such a file; without a counter the
    // probe works wherever its site is reached.
    return {symbol.value_or(VirtAddr{0}), repair::semaphore_dangling, false};
  }
  return {facts.address, "", false};
}

}  // namespace

std::vector<SemaphoreValue> wanted_semaphores(const ElfFile& file, const ProbeFile& probes,
                                              const std::vector<SemaphoreFacts>& facts,
                                              const RepairChoice& choice) {
  std::vector<SemaphoreValue> values;
  values.reserve(probes.probes.size());
  // In a debug file the segments are those of the program, and their bytes are elsewhere.
  if (file.header().type == ET_REL || probes.debug_file) {
    for (const Probe& probe : probes.probes) values.push_back({probe.semaphore, "", false});
    return values;
  }
  for (std::size_t i = 0; i < facts.size(); ++i) {
    // Of a probe that no byte of the file belongs to (a file without segments) nothing is known.
    const bool known = probes.probes[i].verdict != Verdict::unknown;
    values.push_back(known ? value_for(file, facts[i], choice)
                           : SemaphoreValue{facts[i].address, "", false});
  }

  // The notes of one probe must name one counter (bcc takes the first note's, the kernel refuses a
  // second at one instruction): the one that its symbol names.
  std::map<std::tuple<std::string_view, std::string_view>, std::pair<VirtAddr, bool>> counters;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Note& note = probes.probes[i].note;
    if (values[i].address.value == 0 || probes.probes[i].verdict == Verdict::dangling) continue;
    const auto [found, is_new] =
        counters.try_emplace({note.provider, note.name}, values[i].address, false);
    found->second.second |= found->second.first != values[i].address;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Note& note = probes.probes[i].note;
    const auto found = counters.find({note.provider, note.name});
    const auto symbol = counter_symbol(file, facts[i]);
    const bool conflict = found != counters.end() && found->second.second;
    if (!conflict || values[i].address.value == 0) continue;
    if (!symbol || !choice.wants(repair::semaphore_conflict)) {
      values[i].conflict = true;
    } else if (values[i].address != *symbol) {
      values[i] = {*symbol, repair::semaphore_conflict, false};
    }
  }
  return values;
}

bool counter_works(const ElfFile& file, VirtAddr address) {
  const Segment* segment = file.load_segment(address);
  if (segment == nullptr || (segment->flags & (PF_W | PF_X)) != PF_W) return false;
  const Section* section = file.section_containing(address);
  if (section != nullptr && section->nobits()) return false;
  const auto offset = file.offset_of(address);
  return offset && offset->value % 2 == 0 && file.bytes_at(address, Size{2}).size() == 2;
}

}  // namespace reprobe
