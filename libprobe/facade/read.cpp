// open_elf, list and audit.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/audit/rules.hpp"
#include "libprobe/facade/no_exceptions.hpp"
#include "libprobe/probes/select.hpp"
#include "reprobe/reprobe.hpp"

namespace reprobe {
namespace {

// The fields of the ELF header that lead to the sections.
bool is_about_sections(const ReadProblem& problem) {
  constexpr std::array<std::string_view, 4> kFields = {"e_shoff", "e_shentsize", "e_shnum",
                                                       "e_shstrndx"};
  return std::ranges::find(kFields, problem.where) != kFields.end();
}

Result<ElfFile> open_with_sections(std::shared_ptr<const ByteSource> source) {
  auto file = ElfFile::open(std::move(source));
  // A file whose sections have no names at all says so with SHN_UNDEF.
  if (!file || (!file->sections().empty() && file->header().shstrndx == SHN_UNDEF)) return file;
  const auto problem = std::ranges::find_if(file->problems(), is_about_sections);
  if (problem == file->problems().end()) return file;
  return fail(ErrorCode::unreadable, problem->where, problem->message,
              "the file is damaged or cut short; probes are found through its section headers");
}

Listing list_file(const ElfFile& file, const LinkObjects* objects) {
  if (auto indexed = read_index_probes(file)) {
    return {Listing::From::index, std::move(*indexed), {}};
  }
  Listing listing;
  listing.legacy = read_legacy(file);
  if (auto others = read_other_sections(file)) {
    listing.from = Listing::From::other_sections;
    listing.notes = std::move(*others);
  } else {
    listing.notes = read_probes(file, objects);
  }
  return listing;
}

// These refuse a file without .stapsdt.base as a whole (docs/consumers.md).
bool needs_base(const std::vector<std::string>& consumers) {
  return std::ranges::any_of(
      consumers, [](const std::string& name) { return name == "otel" || name == "gadget"; });
}

// Notes may hide in a section whose name cannot be read.
bool may_have_probes(const ElfFile& file, const ProbeFile& probes) {
  const auto is_nameless_note = [](const Section& section) {
    return section.type == SHT_NOTE && section.name.empty();
  };
  return !probes.probes.empty() || !probes.scan.findings.empty() ||
         std::ranges::any_of(file.sections(), is_nameless_note);
}

// What the reader had to step over; reported only where the file has probes or may have.
std::vector<Finding> read_findings(const ElfFile& file) {
  std::vector<Finding> findings;
  for (const ReadProblem& problem : file.problems()) {
    Finding finding;
    finding.rule = "elf-malformed";
    finding.severity = Severity::warning;
    finding.message = fmt::format("[{}] {}", problem.where, problem.message);
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<ConsumerVerdict> verdicts_of(const ElfFile& file, const ProbeFile& probes,
                                         const AuditRequest& request) {
  std::vector<bool> chosen;
  for (const Probe& probe : probes.probes) chosen.push_back(selected(request.patterns, probe.note));
  if (std::ranges::find(chosen, true) == chosen.end()) return {};
  return consumer_verdicts(file, probes, request.consumers, chosen);
}

AuditReport audit_file(const ElfFile& file, const AuditRequest& request) {
  AuditReport report;
  report.notes = read_probes(file, request.objects);
  report.legacy = read_legacy(file);
  const auto take = [&](std::vector<Finding> findings) {
    std::erase_if(findings, [&](const Finding& finding) {
      return !finding.name.empty() && !selected(request.patterns, finding.provider, finding.name);
    });
    std::ranges::move(findings, std::back_inserter(report.findings));
  };
  if (may_have_probes(file, report.notes)) report.findings = read_findings(file);
  // In any case: there are rules about probes that were deleted.
  take(audit(file, report.notes, request.kernels));
  take(audit_legacy(report.legacy));
  if (needs_base(request.consumers)) {
    for (Finding& finding : report.findings) {
      if (finding.rule == "base-missing") finding.severity = Severity::error;
    }
  }
  if (request.with_consumers) report.consumers = verdicts_of(file, report.notes, request);
  return report;
}

}  // namespace

Result<ElfFile> open_elf(std::shared_ptr<const ByteSource> source) {
  return without_exceptions([&] { return open_with_sections(std::move(source)); });
}

Result<ElfFile> open_elf(const std::filesystem::path& path) {
  return without_exceptions([&]() -> Result<ElfFile> {
    auto source = map_file(path);
    if (!source) return tl::unexpected(source.error());
    return open_with_sections(std::move(*source));
  });
}

Result<Listing> list(const ElfFile& file, const LinkObjects* objects) {
  return without_exceptions([&]() -> Result<Listing> { return list_file(file, objects); });
}

Result<AuditReport> audit(const ElfFile& file, const AuditRequest& request) {
  return without_exceptions([&]() -> Result<AuditReport> { return audit_file(file, request); });
}

}  // namespace reprobe
