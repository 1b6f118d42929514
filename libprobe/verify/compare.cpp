#include "libprobe/verify/compare.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/audit/probe.hpp"
#include "libprobe/verify/allowed.hpp"

namespace reprobe {
namespace {

Finding finding(std::string rule, std::string message) {
  Finding result;
  result.rule = std::move(rule);
  result.severity = Severity::error;
  result.message = std::move(message);
  return result;
}

// Compares [begin, end) of both files in pieces; reports the first difference.
bool same_bytes(const ElfFile& before, const ElfFile& after, std::uint64_t begin, std::uint64_t end,
                std::vector<Finding>& out) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  for (std::uint64_t at = begin; at < end; at += std::min(kPiece, end - at)) {
    const Size size{std::min(kPiece, end - at)};
    const auto old_bytes = before.source().slice(FileOffset{at}, size, "bytes to compare");
    const auto new_bytes = after.source().slice(FileOffset{at}, size, "bytes to compare");
    if (!old_bytes || !new_bytes) {
      out.push_back(finding("verify-bytes", fmt::format("the file ends before {:#x}", at)));
      return false;
    }
    const auto [a, b] = std::ranges::mismatch(*old_bytes, *new_bytes);
    if (a == old_bytes->end()) continue;
    const auto where = at + static_cast<std::uint64_t>(a - old_bytes->begin());
    out.push_back(finding(
        "verify-bytes", fmt::format("the byte at {:#x} is outside the notes; expected {:#04x}, "
                                    "found {:#04x}",
                                    where, static_cast<unsigned>(*a), static_cast<unsigned>(*b))));
    return false;
  }
  return true;
}

void compare_bytes(const ElfFile& before, const ElfFile& after, const CompareOptions& options,
                   std::vector<Finding>& out) {
  std::uint64_t at = 0;
  for (const Range& range : allowed_ranges(before, after, options.allow_new_build_id)) {
    if (range.begin > at && !same_bytes(before, after, at, range.begin, out)) return;
    at = std::max(at, range.end);
  }
  if (at < before.source().size()) same_bytes(before, after, at, before.source().size(), out);
}

bool same_probe(const Probe& a, const Probe& b) {
  return a.note.provider == b.note.provider && a.note.name == b.note.name &&
         a.note.arguments == b.note.arguments && a.site == b.site && a.semaphore == b.semaphore;
}

Finding probe_finding(const Probe& probe, std::string rule, std::string message) {
  Finding result = finding(std::move(rule), std::move(message));
  result.provider = probe.note.provider;
  result.name = probe.note.name;
  result.site = probe.site.value;
  result.note_offset = probe.note.file_offset.value;
  result.evidence = probe.evidence;
  return result;
}

// Kept probes stand in the old order, so one walk over both lists pairs them.
void compare_probes(const ProbeFile& before, const ProbeFile& after, const CompareOptions& options,
                    std::vector<Finding>& out) {
  std::size_t at = 0;
  for (const Probe& old : before.probes) {
    if (at < after.probes.size() && same_probe(old, after.probes[at])) {
      ++at;
      continue;
    }
    const bool may_go = old.verdict == Verdict::dangling ||
                        (old.verdict == Verdict::ambiguous && options.allow_removed_ambiguous);
    if (!may_go) {
      out.push_back(probe_finding(
          old, "verify-probe-lost",
          fmt::format("the probe was {} and is not in the result", to_string(old.verdict))));
    }
  }
  for (; at < after.probes.size(); ++at) {
    out.push_back(probe_finding(after.probes[at], "verify-probe-added",
                                "the result has a probe that the input has not"));
  }
}

}  // namespace

std::vector<Finding> compare(const ElfFile& before, const ElfFile& after,
                             const CompareOptions& options) {
  std::vector<Finding> out;
  compare_bytes(before, after, options, out);
  compare_sections(before, after, out);
  compare_probes(read_probes(before), read_probes(after), options, out);
  if (!options.allow_new_build_id && before.build_id() != after.build_id()) {
    out.push_back(finding("verify-build-id", fmt::format("expected {}, found {}", before.build_id(),
                                                         after.build_id())));
  }
  return out;
}

}  // namespace reprobe
