#include "libprobe/audit/rules.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace reprobe {
namespace {

Finding about(const Probe& probe, std::string rule, Severity severity, std::string message) {
  Finding finding;
  finding.rule = std::move(rule);
  finding.severity = severity;
  finding.provider = probe.note.provider;
  finding.name = probe.note.name;
  finding.site = probe.site.value;
  finding.note_offset = probe.note.file_offset.value;
  finding.message = std::move(message);
  return finding;
}

// field-by-field: libbpf refuses a probe name as soon as one of its notes has a location in no
// executable segment (collect_usdt_targets: -ESRCH).
Finding dangling(const Probe& probe) {
  Finding finding = about(probe, "dangling", Severity::error,
                          "the note's code is not in the file; a tracer attaches elsewhere or "
                          "refuses the probe");
  finding.evidence = probe.evidence;
  finding.hint = "reprobe fix removes the note";
  return finding;
}

Finding ambiguous(const Probe& probe) {
  Finding finding = about(probe, "ambiguous", Severity::warning,
                          "the note may point at its probe or, by accident, at another "
                          "instruction");
  finding.evidence = probe.evidence;
  finding.hint =
      "link with -Wl,--emit-relocs (lld, bfd) or keep .symtab to decide; reprobe fix "
      "--remove-ambiguous -p PROVIDER:NAME removes it";
  return finding;
}

Finding alias(const Probe& probe, const Probe& first) {
  const bool is_first = &probe == &first;
  Finding finding = about(
      probe, "alias", Severity::note,
      is_first
          ? fmt::format("shares its instruction with {} other probe(s): tracing one traces all",
                        probe.alias_count)
          : fmt::format("shares its instruction with {}:{}: tracing one traces both",
                        first.note.provider, first.note.name));
  if (probe.facts.function && !probe.facts.function->name.empty()) {
    finding.evidence.push_back(fmt::format("both at {}+{:#x}", probe.facts.function->name,
                                           probe.site.value - probe.facts.function->start.value));
  }
  finding.hint = "identical code folding (--icf=all) does this; link with --icf=safe or none";
  return finding;
}

// gdb (stap-probe.c) and perf add the section's address minus note.base: without the section gdb
// lists no probe at all.
void base_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  if (file.header().type == ET_REL || probes.probes.empty()) return;
  const auto differs = [&](const Probe& p) {
    return p.note.base.value != (probes.base ? probes.base->value : 0);
  };
  const auto count = std::ranges::count_if(probes.probes, differs);
  if (!probes.base) {
    Finding finding;
    finding.rule = "base-missing";
    finding.severity = Severity::warning;
    finding.message = "the file has no .stapsdt.base section: gdb lists none of its probes";
    finding.evidence.push_back(
        fmt::format("{} of {} notes have a base other than 0", count, probes.probes.size()));
    finding.hint = "--gc-sections with lld, mold or gold drops it; reprobe fix puts it back";
    out.push_back(std::move(finding));
  }
  if (probes.shift.distance != 0) {
    Finding finding;
    finding.rule = "base-shift";
    finding.severity = Severity::error;
    finding.message = "the file was moved after the link and its notes were not";
    finding.evidence.push_back(probes.shift.evidence);
    finding.hint = "reprobe fix rewrites location and semaphore to the file's addresses";
    out.push_back(std::move(finding));
  }
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

}  // namespace

std::vector<Finding> audit(const ElfFile& file, const ProbeFile& probes) {
  std::vector<Finding> findings;
  base_findings(file, probes, findings);
  for (const Probe& probe : probes.probes) {
    if (probe.verdict == Verdict::dangling) findings.push_back(dangling(probe));
    if (probe.verdict == Verdict::ambiguous) findings.push_back(ambiguous(probe));
    if (probe.alias_count != 0) findings.push_back(alias(probe, probes.probes[probe.alias_of]));
  }
  findings.insert(findings.end(), probes.scan.findings.begin(), probes.scan.findings.end());
  std::ranges::stable_sort(findings, {}, [](const Finding& f) {
    return std::pair(f.note_offset.has_value(), f.note_offset.value_or(0));
  });
  return findings;
}

}  // namespace reprobe
