// libFuzzer over list, audit, diff and the plans of fix, sled and relativize, on bytes in memory.
// Beyond "no crash", each planned rewrite must survive the check that the tool itself makes, and a
// second one must have nothing left to do.

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "libprobe/audit/diff.hpp"
#include "libprobe/audit/legacy_probes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/audit/rules.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/build_id.hpp"
#include "libprobe/rewrite/fix.hpp"
#include "libprobe/rewrite/index/relativize.hpp"
#include "libprobe/rewrite/index/renew.hpp"
#include "libprobe/rewrite/legacy/upgrade.hpp"
#include "libprobe/rewrite/sled/sled.hpp"
#include "libprobe/tracers/consumers.hpp"
#include "libprobe/verify/compare.hpp"

namespace {

using namespace reprobe;

void require(bool holds, const char* what, const std::string& detail) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s: %s\n", what, detail.c_str());
  std::abort();
}

// What the rewrite changes, once more: nothing.
std::string left_to_do(const Result<FixPlan>& again) {
  if (!again) return again.error().message;
  if (again->plan.empty()) return "";
  return again->plan.edits().empty() ? again->plan.appended_why().front()
                                     : again->plan.edits().front().why;
}

void fix_and_check(const ElfFile& before, const ProbeFile& probes, const FixOptions& options,
                   bool new_build_id) {
  auto fix = plan_fix(before, probes, options);
  // What fails must be refused; everything else is a fault of the plan, not of the file.
  require(fix || fix.error().code != ErrorCode::internal, "a plan must not contradict itself",
          fix ? "" : fix.error().message);
  if (!fix || !renew_index(fix->plan, before) || fix->plan.empty()) return;
  if (new_build_id) {
    if (const auto renewed = renew_build_id(fix->plan, before); !renewed) {
      require(renewed.error().code == ErrorCode::refused, "a new build-id must be refused",
              renewed.error().message);
      return;
    }
  }
  const auto output = apply(fix->plan, before.source());
  require(output.has_value(), "a plan must apply", output ? "" : output.error().message);
  const auto after = ElfFile::open(borrowed_source(*output));
  require(after.has_value(), "the result must open", after ? "" : after.error().message);
  const auto findings = compare(
      before, *after,
      {.allow_removed_ambiguous = options.remove_ambiguous, .allow_new_build_id = new_build_id});
  require(findings.empty(), "the result must verify",
          findings.empty() ? "" : findings.front().rule + ": " + findings.front().message);
  const std::string left = left_to_do(plan_fix(*after, read_probes(*after), options));
  require(left.empty(), "a second fix must change nothing", left);
}

// Of both kinds, with a guard wherever the kind may need one.
void sled_and_check(const ElfFile& before, const ProbeFile& probes) {
  for (const SledKind kind : {SledKind::nop10, SledKind::nop5}) {
    const auto sleds = plan_sleds(before, probes, {.kind = kind, .selected = {}});
    require(sleds || sleds.error().code != ErrorCode::internal, "sleds must not contradict",
            sleds ? "" : sleds.error().message);
    if (!sleds || sleds->plan.empty()) continue;
    const auto output = apply(sleds->plan, before.source());
    require(output.has_value(), "a plan must apply", output ? "" : output.error().message);
    const auto after = ElfFile::open(borrowed_source(*output));
    require(after.has_value(), "the result must open", after ? "" : after.error().message);
    const auto findings = compare(before, *after, {});
    require(findings.empty(), "sleds must verify",
            findings.empty() ? "" : findings.front().rule + ": " + findings.front().message);
    require(plan_undo(*after).has_value(), "sleds must come out again", "");
  }
}

void relativize_and_check(const ElfFile& before, const ProbeFile& probes) {
  const auto result = plan_relativize(before, probes, {});
  require(result || result.error().code != ErrorCode::internal, "a plan must not contradict itself",
          result ? "" : result.error().message);
  if (!result || result->plan.empty()) return;
  const auto output = apply(result->plan, before.source());
  require(output.has_value(), "a plan must apply", output ? "" : output.error().message);
  const auto after = ElfFile::open(borrowed_source(*output));
  require(after.has_value(), "the result must open", after ? "" : after.error().message);
  const auto findings = compare(before, *after, {});
  require(findings.empty(), "the index must verify",
          findings.empty() ? "" : findings.front().rule + ": " + findings.front().message);
  const auto again = plan_relativize(*after, read_probes(*after), {});
  require(again && again->plan.empty(), "a second relativize must change nothing",
          again ? "it plans more" : again.error().message);
}

// Records of SystemTap up to 1.3 become notes, once.
void upgrade_and_check(const ElfFile& before) {
  const LegacyProbes legacy = read_legacy(before);
  static_cast<void>(audit_legacy(legacy));
  const auto upgrade = plan_upgrade(before, legacy, {});
  require(upgrade || upgrade.error().code != ErrorCode::internal,
          "an upgrade must not contradict itself", upgrade ? "" : upgrade.error().message);
  if (!upgrade || upgrade->fix.plan.empty()) return;
  const auto output = apply(upgrade->fix.plan, before.source());
  require(output.has_value(), "an upgrade must apply", output ? "" : output.error().message);
  const auto after = ElfFile::open(borrowed_source(*output));
  require(after.has_value(), "the result must open", after ? "" : after.error().message);
  const auto findings = compare(before, *after, {});
  require(findings.empty(), "the upgrade must verify",
          findings.empty() ? "" : findings.front().rule + ": " + findings.front().message);
  require(!read_legacy(*after).found(), "a second upgrade must find nothing", "");
}

// `reprobe verify` takes any two files: here one that differs in a field's worth of bytes, at a
// place that the input itself names.
void compare_with_changed(const ElfFile& before) {
  const ByteSource& source = before.source();
  const auto whole = source.slice({0}, {source.size()}, "the whole file");
  Bytes changed(whole->begin(), whole->end());
  const std::uint64_t sum = std::accumulate(
      changed.begin(), changed.end(), std::uint64_t{0},
      [](std::uint64_t sum, std::byte b) { return sum * 31 + std::to_integer<unsigned>(b); });
  for (std::size_t at = sum % changed.size(), left = 4; left > 0 && at < changed.size(); --left)
    changed[at++] ^= static_cast<std::byte>(sum >> (8 * left + 24));
  const auto after = ElfFile::open(memory_source(std::move(changed)));
  if (!after) return;
  static_cast<void>(compare(before, *after, {}));
  ProbeSurface old, now;
  for (const Probe& probe : read_probes(before).probes) old.add(probe);
  for (const Probe& probe : read_probes(*after).probes) now.add(probe);
  static_cast<void>(diff(old, now));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = ElfFile::open(borrowed_source(std::as_bytes(std::span(data, size))));
  if (!file) return 0;
  const ProbeFile probes = read_probes(*file);
  static_cast<void>(audit(*file, probes));
  static_cast<void>(consumer_verdicts(*file, probes));
  compare_with_changed(*file);
  sled_and_check(*file, probes);
  upgrade_and_check(*file);
  fix_and_check(*file, probes, {}, false);
  // The tool's other ways of asking for a repair.
  fix_and_check(*file, probes, {.remove_ambiguous = true, .selected = {}}, true);
  const auto odd_names = [](const Probe& probe) { return probe.note.name.size() % 2 == 1; };
  fix_and_check(*file, probes, {.remove_ambiguous = false, .selected = odd_names}, false);
  relativize_and_check(*file, probes);
  return 0;
}
