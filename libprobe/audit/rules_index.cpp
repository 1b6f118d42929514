// Rules about .note.reprobe, the loaded index.
#include <algorithm>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/audit/rules_parts.hpp"

namespace reprobe::rules {

void add_index_findings(const ElfFile& file, const ProbeFile& probes, std::vector<Finding>& out) {
  if (std::ranges::none_of(file.sections(), holds_notes)) return;
  const auto why = index_contradiction(file, probes);
  if (!why) return;
  Finding finding = about_file("index-differs", Severity::warning,
                               "the index (.note.reprobe) is not of these notes: a program that "
                               "finds its probes in it finds others");
  finding.evidence.push_back(*why);
  finding.hint = "reprobe relativize or reprobe fix renews it";
  out.push_back(std::move(finding));
}

bool add_lost_notes(const ElfFile& file, std::vector<Finding>& out) {
  const auto lost = read_index_probes(file);
  if (!lost) return false;
  Finding finding = about_file("notes-stripped", Severity::error,
                               "the notes were deleted: no tracer finds the probes that the index "
                               "(.note.reprobe) still has");
  std::vector<const Probe*> known;
  for (const Probe& probe : lost->probes) known.push_back(&probe);
  finding.evidence.push_back(plural(known.size(), "probe") + ": " + shown_names(known));
  finding.hint = file.sections().empty()
                     ? "it has no section headers any more: only the index finds them"
                     : "reprobe fix writes the notes from the index";
  out.push_back(std::move(finding));
  return true;
}

}  // namespace reprobe::rules
