#include "libprobe/rewrite/repairs/state.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace reprobe {
namespace {

bool has_nameless_note(const FixState& state, const Section& section) {
  const auto [first, count] = probes_of(state.probes, section);
  const auto probes = std::span(state.probes.probes).subspan(first, count);
  return std::ranges::any_of(probes, [](const Probe& probe) {
    return probe.verdict != Verdict::live &&
           (probe.note.provider.empty() || probe.note.name.empty());
  });
}

}  // namespace

bool base_is_in_doubt(const Probe& probe) { return probe.facts.site_if_not_moved; }

std::string why_not_read(const FixState& state, const Section& section) {
  if (!section.in_file) return "the section lies outside the file";
  if ((section.flags & SHF_COMPRESSED) != 0) return "the section is compressed";
  if (has_nameless_note(state, section)) {
    return "it has notes without a provider or a name: it may be laid out in an unknown way";
  }
  if (const auto stop = state.stopped.find(section.index); stop != state.stopped.end()) {
    return fmt::format("the bytes from {:#x} on cannot be read as notes", stop->second);
  }
  if (const auto sharer = state.ranges.sharer_of_section_headers()) {
    return "the section headers overlap " + *sharer;
  }
  return "";
}

std::string why_not_change(const FixState& state, const Section& section) {
  if (!section.in_file) return "the section lies outside the file";
  if ((section.flags & SHF_COMPRESSED) != 0) return "the section is compressed";
  if (section.allocated()) {
    return "the section is loaded: run-time relocations may write into it";
  }
  if (const auto sharer = state.ranges.sharer(section)) return "the section overlaps " + *sharer;
  if (const auto sharer = state.ranges.sharer_of_section_headers()) {
    return "the section headers overlap " + *sharer;
  }
  return "";
}

}  // namespace reprobe
