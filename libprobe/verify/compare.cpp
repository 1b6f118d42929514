#include "libprobe/verify/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

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
  const std::uint64_t end = before.source().size();
  std::uint64_t at = 0;
  for (const Range& range : allowed_ranges(before, after, options.allow_new_build_id)) {
    // An empty section may state any offset.
    const std::uint64_t begin = std::min(range.begin, end);
    if (begin > at && !same_bytes(before, after, at, begin, out)) return;
    at = std::max(at, range.end);
  }
  if (at < end) same_bytes(before, after, at, end, out);
}

// What a tracer sees of a probe; equal ones cannot be told apart.
auto seen(const Probe& probe) {
  return std::tuple<std::uint32_t, std::string_view, std::string_view, std::string_view, VirtAddr,
                    VirtAddr>(probe.note.section, probe.note.provider, probe.note.name,
                              probe.note.arguments, probe.site, probe.semaphore);
}

// By section, then by place: a section that moves behind another keeps its own order.
std::vector<const Probe*> by_section(const ProbeFile& file) {
  std::vector<const Probe*> probes;
  for (const Probe& probe : file.probes) probes.push_back(&probe);
  std::ranges::stable_sort(probes, {}, [](const Probe* probe) { return probe->note.section; });
  return probes;
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

// As many as must be kept of each kind are there. Of equal probes one may be removed and another
// not: it does not matter which.
void compare_kept(const ProbeFile& before, const ProbeFile& after, const CompareOptions& options,
                  std::vector<Finding>& out) {
  std::map<decltype(seen(before.probes.front())), std::size_t> found;
  for (const Probe& probe : after.probes) ++found[seen(probe)];
  for (const Probe& old : before.probes) {
    const bool may_go = old.verdict == Verdict::dangling ||
                        (old.verdict == Verdict::ambiguous && options.allow_removed_ambiguous);
    if (may_go) continue;
    std::size_t& left = found[seen(old)];
    if (left == 0) {
      out.push_back(probe_finding(
          old, "verify-probe-lost",
          fmt::format("the probe was {} and is not in the result", to_string(old.verdict))));
    } else {
      --left;
    }
  }
}

void compare_probes(const ProbeFile& before, const ProbeFile& after, const CompareOptions& options,
                    std::vector<Finding>& out) {
  compare_kept(before, after, options, out);
  // Kept probes stand in the old order, so one walk over both lists pairs them.
  const std::vector<const Probe*> results = by_section(after);
  auto next = results.begin();
  for (const Probe* old : by_section(before)) {
    if (next != results.end() && seen(*old) == seen(**next)) ++next;
  }
  if (next != results.end()) {
    out.push_back(probe_finding(**next, "verify-probe-added",
                                "the result has a probe that the input has not, or not there"));
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
