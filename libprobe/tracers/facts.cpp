#include "libprobe/tracers/facts.hpp"

#include <string_view>
#include <utility>

namespace reprobe::consumers {
namespace {

struct NameHash {
  std::size_t operator()(const std::pair<std::string_view, std::string_view>& name) const {
    const std::hash<std::string_view> hash;
    return hash(name.first) * 31 + hash(name.second);
  }
};

}  // namespace

Facts::Facts(const ElfFile& elf, const ProbeFile& probe_file)
    : file(elf),
      probes(probe_file.probes),
      semaphores(read_semaphores(elf, probe_file)),
      base(elf.section(kBaseSection)),
      counters(elf.section(kProbesSection)) {
  // Sections of a hostile file may overlap: walking all of them costs no more than the file.
  std::uint64_t budget = elf.source().size();
  for (const Section& section : elf.sections()) {
    if (section.name != kStapsdtSection || section.size.value > budget) continue;
    budget -= section.size.value;
    note_sections.push_back(&section);
  }
  std::unordered_map<std::pair<std::string_view, std::string_view>, std::size_t, NameHash> names;
  by_offset_.reserve(probes.size());
  group_of.reserve(probes.size());
  for (std::size_t i = 0; i < probes.size(); ++i) {
    const Note& note = probes[i].note;
    by_offset_.emplace(note.file_offset.value, i);
    const auto [it, is_new] = names.try_emplace({note.provider, note.name}, groups.size());
    if (is_new) groups.emplace_back();
    groups[it->second].push_back(i);
    group_of.push_back(it->second);
  }
}

std::optional<std::size_t> Facts::probe_at(std::uint64_t file_offset) const {
  const auto it = by_offset_.find(file_offset);
  if (it == by_offset_.end()) return std::nullopt;
  return it->second;
}

bool Facts::wanted(std::size_t probe) const {
  return probes[probe].verdict == Verdict::live || probes[probe].verdict == Verdict::ambiguous;
}

bool Facts::dangling(std::size_t probe) const { return probes[probe].verdict == Verdict::dangling; }

}  // namespace reprobe::consumers
