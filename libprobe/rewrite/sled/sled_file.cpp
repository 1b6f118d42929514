#include "libprobe/rewrite/sled/sled_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/fork_symbols.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/select.hpp"
#include "libprobe/rewrite/sled/earlier_sleds.hpp"

namespace reprobe {
namespace {

// What rules.md says of nop5-fork.
Result<void> check_forks(const SledRequest& request, SledKind kind, const ElfFile& file) {
  if (kind != SledKind::nop5 || request.allow_fork) return {};
  const std::vector<std::string> how = fork_symbols(file);
  if (how.empty()) return {};
  return fail(
      ErrorCode::refused, "--kind=nop5",
      fmt::format("nop5-fork: the program forks (it takes {}): traced on Linux 6.17 to 7.1, "
                  "its children die where they pass a probe",
                  fmt::join(how, ", ")),
      "--kind=nop10, or --allow-fork where no child passes a probe");
}

SleddedFile has_its_sleds(const ElfFile& file) {
  SleddedFile sledded;
  sledded.result.already = true;
  sledded.probes = read_probes(file);
  return sledded;
}

// The file has sleds: they are planned anew from its original, with those that it had and those
// that are asked for, of the kind that it had or that is asked for.
Result<SleddedFile> plan_again(const ElfFile& file, const SledRequest& request) {
  auto earlier = earlier_sleds(file, read_probes(file));
  if (!earlier) {
    const bool asked = request.kind || !request.patterns.empty();
    if (asked) return tl::unexpected(earlier.error());
    return has_its_sleds(file);
  }
  const auto wanted = selection(request.patterns);
  const SledOptions options{.kind = request.kind.value_or(earlier->kind),
                            .guard = request.guard,
                            .debuggable = request.debuggable,
                            .selected = [&](const Probe& probe) {
                              return earlier->sites.contains(probe.site) || !wanted ||
                                     wanted(probe);
                            }};
  const ElfFile& original = earlier->original;
  ProbeFile probes = read_probes(original);
  auto again = plan_sleds(original, probes, options);
  if (!again) return tl::unexpected(again.error());
  const auto output = apply(again->plan, original.source());
  if (!output) return tl::unexpected(output.error());
  auto plan = plan_output(file.source(), *output, "the sleds anew");
  if (!plan) return tl::unexpected(plan.error());
  if (plan->empty()) return has_its_sleds(file);
  if (auto allowed = check_forks(request, options.kind, original); !allowed) {
    return tl::unexpected(allowed.error());
  }
  again->plan = std::move(*plan);
  return SleddedFile{std::move(*again), std::move(probes),
                     std::make_shared<const ElfFile>(std::move(earlier->original))};
}

}  // namespace

Result<SleddedFile> plan_sled_file(const ElfFile& file, const SledRequest& request) {
  if (file.section(kUndoSection) != nullptr) return plan_again(file, request);
  const SledOptions options{.kind = request.kind.value_or(SledKind::nop10),
                            .guard = request.guard,
                            .debuggable = request.debuggable,
                            .selected = selection(request.patterns)};
  if (auto allowed = check_forks(request, options.kind, file); !allowed) {
    return tl::unexpected(allowed.error());
  }
  ProbeFile probes = read_probes(file);
  auto result = plan_sleds(file, probes, options);
  if (!result) return tl::unexpected(result.error());
  return SleddedFile{std::move(*result), std::move(probes), nullptr};
}

}  // namespace reprobe
