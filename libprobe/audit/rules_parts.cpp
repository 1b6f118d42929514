#include "libprobe/audit/rules_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace reprobe::rules {

Finding about(const Probe& probe, std::string_view rule, Severity severity, std::string message) {
  Finding finding = about_file(rule, severity, std::move(message));
  finding.provider = probe.note.provider;
  finding.name = probe.note.name;
  finding.site = probe.site.value;
  finding.note_offset = probe.note.file_offset.value;
  return finding;
}

Finding about_file(std::string_view rule, Severity severity, std::string message) {
  Finding finding;
  finding.rule = rule;
  finding.severity = severity;
  finding.message = std::move(message);
  return finding;
}

bool wanted(const Probe& probe) {
  return probe.verdict == Verdict::live || probe.verdict == Verdict::ambiguous;
}

std::string shown_name(const Probe& probe) {
  constexpr std::size_t kShort = 80;
  std::string name = probe.note.provider + ":" + probe.note.name;
  if (name.size() > kShort) name = name.substr(0, kShort) + "...";
  return name;
}

std::string shown_names(const std::vector<const Probe*>& probes) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> names;
  std::size_t more = 0;
  for (const Probe* probe : probes) {
    std::string name = shown_name(*probe);
    if (std::ranges::find(names, name) != names.end()) continue;
    if (names.size() < kShown) {
      names.push_back(std::move(name));
    } else {
      ++more;
    }
  }
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (more != 0) text += fmt::format(" and {} more", more);
  return text;
}

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::vector<Name> names_of(const ProbeFile& probes) {
  std::vector<Name> names;
  std::unordered_map<std::string, std::size_t> index;
  for (const Probe& probe : probes.probes) {
    if (!wanted(probe)) continue;
    // Neither part can hold a NUL.
    std::string key = probe.note.provider + '\0' + probe.note.name;
    const auto [at, added] = index.try_emplace(std::move(key), names.size());
    if (added) names.emplace_back();
    names[at->second].push_back(&probe);
  }
  return names;
}

}  // namespace reprobe::rules
