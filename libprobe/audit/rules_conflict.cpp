// Rules about probes that get into each other's way: at one instruction, or by one name.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "libprobe/audit/rules_parts.hpp"

namespace reprobe::rules {
namespace {

std::string counter_text(const Probe& probe) {
  return probe.semaphore.value == 0
             ? fmt::format("{} has none", shown_name(probe))
             : fmt::format("{} has the one at {:#x}", shown_name(probe), probe.semaphore.value);
}

// The kernel keeps one reference counter for all uprobes of an inode and offset (uprobes.c,
// alloc_uprobe: ref_ctr_mismatch_warn, -EINVAL).
void one_instruction(const ProbeFile& probes, std::vector<Finding>& out) {
  std::unordered_map<std::uint64_t, const Probe*> first_at;
  std::vector<const Probe*> refused;
  const Probe* rival = nullptr;
  for (const Probe& probe : probes.probes) {
    if (!wanted(probe)) continue;
    const Probe* first = first_at.try_emplace(probe.site.value, &probe).first->second;
    if (first->semaphore == probe.semaphore) continue;
    if (refused.empty()) rival = first;
    refused.push_back(&probe);
  }
  if (refused.empty()) return;
  const Probe& one = *refused.front();
  const std::string message =
      "probes at one instruction have different counters: the kernel refuses the second one that "
      "is traced (EINVAL)";
  Finding finding = refused.size() == 1
                        ? about(one, "semaphore-conflict", Severity::error, message)
                        : about_file("semaphore-conflict", Severity::error, message);
  finding.evidence.push_back(
      fmt::format("at {:#x}, {}, {}", one.site.value, counter_text(*rival), counter_text(one)));
  if (refused.size() > 1) {
    finding.evidence.push_back(
        fmt::format("{}: {}", plural(refused.size(), "probe"), shown_names(refused)));
  }
  finding.hint =
      "give them one counter, or an instruction each: identical code folding (--icf=all) puts two "
      "probes at one";
  out.push_back(std::move(finding));
}

// bcc (usdt.cc, Probe::attach) takes the counter of the name's first note for all sites.
void one_name(const ProbeFile& probes, std::vector<Finding>& out) {
  for (const Name& name : names_of(probes)) {
    const Probe& first = *name.front();
    const auto other =
        std::ranges::find_if(name, [&](const Probe* p) { return p->semaphore != first.semaphore; });
    if (other == name.end()) continue;
    Finding finding = about(first, "semaphore-conflict", Severity::error,
                            "the sites of this probe have different counters: bcc raises only the "
                            "first note's");
    finding.evidence.push_back(
        fmt::format("note {:#x}: {}; note {:#x}: {}", first.note.file_offset.value,
                    counter_text(first), (*other)->note.file_offset.value, counter_text(**other)));
    finding.hint =
        "one PROVIDER_NAME_semaphore for all objects of the file, not a static one in each";
    out.push_back(std::move(finding));
  }
}

}  // namespace

void add_conflict_findings(const ElfFile& file, const ProbeFile& probes,
                           std::vector<Finding>& out) {
  if (file.header().type == ET_REL || probes.debug_file) return;
  one_instruction(probes, out);
  one_name(probes, out);
}

}  // namespace reprobe::rules
