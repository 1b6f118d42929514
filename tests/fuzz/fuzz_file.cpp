// libFuzzer over list, audit and the plan of fix, on bytes in memory. Beyond "no crash", each
// planned rewrite must survive the check that the tool itself makes, and a second one must have
// nothing left to do.

#include <cstdio>
#include <cstdlib>

#include "libprobe/audit/probe.hpp"
#include "libprobe/audit/rules.hpp"
#include "libprobe/rewrite/fix.hpp"
#include "libprobe/verify/compare.hpp"

namespace {

using namespace reprobe;

void require(bool holds, const char* what, const std::string& detail) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s: %s\n", what, detail.c_str());
  std::abort();
}

void fix_and_check(const ElfFile& before, const ProbeFile& probes) {
  const auto fix = plan_fix(before, probes, {});
  if (!fix || fix->plan.empty()) return;
  const auto output = apply(fix->plan, before.source());
  require(output.has_value(), "a plan must apply", output ? "" : output.error().message);
  const auto after = ElfFile::open(borrowed_source(*output));
  require(after.has_value(), "the result must open", after ? "" : after.error().message);
  const auto findings = compare(before, *after, {});
  require(findings.empty(), "the result must verify",
          findings.empty() ? "" : findings.front().rule + ": " + findings.front().message);
  const auto again = plan_fix(*after, read_probes(*after), {});
  require(again && again->plan.empty(), "a second fix must change nothing",
          again && !again->plan.edits().empty() ? again->plan.edits().front().why : "");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = ElfFile::open(borrowed_source(std::as_bytes(std::span(data, size))));
  if (!file) return 0;
  const ProbeFile probes = read_probes(*file);
  static_cast<void>(audit(*file, probes));
  fix_and_check(*file, probes);
  return 0;
}
