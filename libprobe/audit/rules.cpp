#include "libprobe/audit/rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "libprobe/audit/rules_parts.hpp"

namespace reprobe {
namespace {

using rules::about;

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
      "--objects with the inputs of the link, -Wl,--emit-relocs (lld, bfd) or .symtab decide; "
      "reprobe fix --remove-ambiguous -p PROVIDER:NAME removes it";
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
  if (function_of(probe) && !function_of(probe)->name.empty()) {
    finding.evidence.push_back(
        fmt::format("both at {}+{:#x}", function_of(probe)->name,
                    site_in_function(probe).value - function_of(probe)->start.value));
  }
  finding.hint = "identical code folding (--icf=all) does this; link with --icf=safe or none";
  return finding;
}

}  // namespace

std::vector<Finding> audit(const ElfFile& file, const ProbeFile& probes, const Kernels& kernels) {
  std::vector<Finding> findings;
  rules::add_file_findings(file, probes, findings);
  rules::add_index_findings(file, probes, findings);
  rules::add_base_findings(file, probes, findings);
  rules::add_semaphore_findings(file, probes, findings);
  rules::add_lonely_counter_findings(file, probes, findings);
  rules::add_conflict_findings(file, probes, findings);
  rules::add_site_findings(file, probes, kernels, findings);
  rules::add_argument_findings(file, probes, findings);
  rules::add_count_findings(probes, kernels, findings);
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

std::vector<Finding> counters_beyond_repair(const ElfFile& file, const ProbeFile& probes) {
  constexpr std::array<std::string_view, 5> kRules{"semaphore-nobits", "semaphore-readonly",
                                                   "semaphore-executable", "semaphore-odd",
                                                   "semaphore-relro-page"};
  std::vector<Finding> findings;
  rules::add_semaphore_findings(file, probes, findings);
  std::erase_if(findings, [&](const Finding& finding) {
    return std::ranges::find(kRules, finding.rule) == kRules.end();
  });
  return findings;
}

}  // namespace reprobe
