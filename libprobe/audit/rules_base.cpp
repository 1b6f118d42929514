// Rules about .stapsdt.base: tracers find a moved file's sites by it, each in its own way
// (docs/consumers.md).
#include <fmt/format.h>

#include <algorithm>

#include "libprobe/audit/rules_parts.hpp"

namespace reprobe::rules {
namespace {

// gdb (stap-probe.c) adds the section's address minus note.base: without the section it lists no
// probe at all. perf (symbol-elf.c, sdt_adjust_loc) then takes the location for a file offset.
void base_missing(const ProbeFile& probes, std::size_t differ, std::vector<Finding>& out) {
  if (probes.base) return;
  const auto misplaced = std::ranges::count_if(probes.probes, [](const Probe& p) {
    return wanted(p) && p.site_offset && p.site_offset->value != p.note.location.value;
  });
  Finding finding =
      about_file("base-missing", Severity::warning,
                 "the file has no .stapsdt.base section: gdb lists none of its probes");
  finding.evidence.push_back(
      fmt::format("{} of {} notes have a base other than 0", differ, probes.probes.size()));
  if (misplaced != 0) {
    finding.evidence.push_back(
        fmt::format("perf takes the location for a file offset: wrong for {}",
                    plural(static_cast<std::size_t>(misplaced), "site")));
  }
  finding.hint = "--gc-sections with lld, mold or gold drops it; reprobe fix puts it back";
  // There is no code beside which it could stand, and tracers read the program's notes.
  if (probes.debug_file) {
    finding.severity = Severity::note;
    finding.hint = "repair the program before its debug information is split off";
  }
  out.push_back(std::move(finding));
}

void moved_file(const ProbeFile& probes, std::vector<Finding>& out) {
  if (probes.shift.distance == 0) return;
  Finding finding = about_file("base-shift", Severity::error,
                               "the file was moved after the link and its notes were not");
  finding.evidence.push_back(probes.shift.evidence);
  finding.hint = "reprobe fix rewrites location and semaphore to the file's addresses";
  out.push_back(std::move(finding));
}

std::uint64_t perf_offset(const Probe& probe, const Section& base) {
  return probe.note.location.value - probe.note.base.value + base.offset.value;
}

// perf (symbol-elf.c, sdt_adjust_loc) adds the section's OFFSET minus note.base and takes the
// result for a file offset: right only where section and site share address minus offset.
void base_delta(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  const Section* base = file.section(kBaseSection);
  if (base == nullptr || probes.debug_file) return;
  std::vector<const Probe*> wrong;
  std::size_t all = 0;
  for (const Probe& probe : probes.probes) {
    if (!wanted(probe) || !probe.site_offset) continue;
    ++all;
    const std::uint64_t right = probe.site_offset->value;
    // Where the two agree, what perf gets wrong is base-shift's matter.
    const bool differ = probe.site.value - right != base->addr.value - base->offset.value;
    if (differ && perf_offset(probe, *base) != right) wrong.push_back(&probe);
  }
  if (wrong.empty()) return;
  const Probe& first = *wrong.front();
  Finding finding = about_file(
      "base-delta", Severity::error,
      fmt::format("perf computes a wrong file offset for {}: .stapsdt.base and the code differ in "
                  "address minus offset",
                  plural(wrong.size(), "site")));
  finding.evidence.push_back(fmt::format("{} at {:#x} has the file offset {:#x}; perf takes {:#x}",
                                         shown_name(first), first.site.value,
                                         first.site_offset->value, perf_offset(first, *base)));
  finding.evidence.push_back(fmt::format("{} of {}", wrong.size(), plural(all, "site")));
  finding.hint =
      "reprobe fix puts the base where the code is; lld and mold with "
      "-z separate-loadable-segments link it right";
  out.push_back(std::move(finding));
}

}  // namespace

void add_base_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  if (file.header().type == ET_REL || probes.probes.empty()) return;
  const auto differs = [&](const Probe& p) {
    return p.note.base.value != (probes.base ? probes.base->value : 0);
  };
  const auto count = static_cast<std::size_t>(std::ranges::count_if(probes.probes, differs));
  base_missing(probes, count, out);
  moved_file(probes, out);
  base_delta(file, probes, out);
  if (count == 0) return;
  const Probe& first = *std::ranges::find_if(probes.probes, differs);
  Finding finding =
      about(first, "base-shift", probes.base ? Severity::warning : Severity::error,
            fmt::format("note.base is {:#x}, .stapsdt.base {}: tracers compute different addresses",
                        first.note.base.value,
                        probes.base ? fmt::format("is at {:#x}", probes.base->value)
                                    : std::string("is not in the file")));
  finding.evidence.push_back(fmt::format("{} of {} notes", count, probes.probes.size()));
  finding.hint = "reprobe fix rewrites location, base and semaphore to the file's addresses";
  out.push_back(std::move(finding));
}

}  // namespace reprobe::rules
