// reprobe sled: read -> flow -> plan -> apply -> verify -> commit; --undo gives the input back.

#include "libprobe/rewrite/sled/sled.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/fork_symbols.hpp"
#include "libprobe/plan/compose.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/rewrite/sled/earlier_sleds.hpp"
#include "tool/check.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"
#include "tool/temporary_file.hpp"
#include "tool/write.hpp"

namespace reprobe {
namespace {

// The probes of each site, in note order.
std::multimap<VirtAddr, const Probe*> by_site(const ProbeFile& probes) {
  std::multimap<VirtAddr, const Probe*> map;
  for (const Probe& probe : probes.probes) map.emplace(probe.site, &probe);
  return map;
}

Json plan_json(const SledCommandOptions& options, const ElfFile& file, const ProbeFile& probes,
               const SledResult& result) {
  const auto map = by_site(probes);
  const auto named = [&](VirtAddr site, const auto& fill) {
    const auto [first, last] = map.equal_range(site);
    Json items = Json::array();
    for (auto it = first; it != last; ++it) {
      Json item = {{"provider", it->second->note.provider}, {"name", it->second->note.name}};
      fill(item);
      items.push_back(std::move(item));
    }
    return items;
  };
  Json sites = Json::array();
  for (const PlannedSite& site : result.sleds.sites) {
    const auto moved = result.moved.find(site.site.value);
    const VirtAddr to = moved == result.moved.end() ? site.site : moved->second;
    for (Json& item : named(site.site, [&](Json& j) {
           j["from"] = hex(site.site.value);
           j["to"] = hex(to.value);
           j["tactic"] = to_string(site.tactic);
           if (result.unsafe.contains(site.site)) j["breakpoints"] = "unsafe";
         })) {
      sites.push_back(std::move(item));
    }
  }
  Json refused = Json::array();
  for (const RefusedSite& site : result.sleds.refused) {
    for (Json& item : named(site.site, [&](Json& j) {
           j["site"] = hex(site.site.value);
           j["reason"] = site.reason;
           if (!site.detail.empty()) j["detail"] = site.detail;
         })) {
      refused.push_back(std::move(item));
    }
  }
  Json j = plan_head(options, result.plan);
  j["appended"] = result.plan.appended().size();
  j["removed"] = Json::array();
  j["sites"] = std::move(sites);
  j["refused"] = std::move(refused);
  if (Json followed = index_json(result.index); !followed.is_null()) {
    j["index"] = std::move(followed);
  }
  add_build_id(j, file);
  return j;
}

void print_plan(const ProbeFile& probes, const SledResult& result) {
  const auto map = by_site(probes);
  const auto names = [&](VirtAddr site) {
    std::string text;
    const auto [first, last] = map.equal_range(site);
    for (auto it = first; it != last; ++it) {
      text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", it->second->note.provider,
                          it->second->note.name);
    }
    return printable(text);
  };
  for (const PlannedSite& site : result.sleds.sites) {
    const auto moved = result.moved.find(site.site.value);
    const VirtAddr to = moved == result.moved.end() ? site.site : moved->second;
    fmt::print("sled {} at {:#x}: {} to {:#x}{}\n", names(site.site), site.site.value,
               to_string(site.tactic), to.value,
               result.unsafe.contains(site.site) ? ", breakpoints are unsafe" : "");
  }
  for (const RefusedSite& site : result.sleds.refused) {
    fmt::print("leave {} at {:#x}: {}{}\n", names(site.site), site.site.value, site.reason,
               site.detail.empty() ? "" : " (" + site.detail + ")");
  }
  print_edits(result.plan);
}

// "FILE: sleds: 529/531 (99.6%)", and what was left, by reason.
void say_coverage(const SledCommandOptions& options, const SledResult& result,
                  const Terminal& terminal) {
  const std::size_t done = result.sleds.sites.size();
  const std::size_t all = done + result.sleds.refused.size();
  const std::string share =
      all == 0
          ? ""
          : fmt::format(" ({:.1f}%)", 100.0 * static_cast<double>(done) / static_cast<double>(all));
  terminal.info(fmt::format("{}: sleds: {}/{}{}", options.file, done, all, share));
  if (!result.unsafe.empty()) {
    terminal.info(
        fmt::format("{}: {} of them change code that breakpoints of debuggers would break",
                    options.file, result.unsafe.size()));
  }
  std::map<std::string, std::size_t> reasons;
  for (const RefusedSite& site : result.sleds.refused) ++reasons[site.reason];
  for (const auto& [reason, count] : reasons) {
    terminal.info(fmt::format("{}: left as they are: {}: {}", options.file, count, reason));
  }
}

Result<int> undo_file(const SledCommandOptions& options, const Terminal& terminal) {
  const auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  const auto plan = plan_undo(input->file);
  if (!plan) return tl::unexpected(plan.error());
  // plan_undo() has compared the SHA-256 of what it gives.
  const auto written = write_output(options, *plan, *input, {});
  if (!written) return tl::unexpected(written.error());
  if (options.common.json) {
    Json j = plan_head(options, *plan);
    j["size"] = plan->kept(input->file.source()).value;
    print_json(j);
  }
  terminal.info(fmt::format("{}: {} the original", options.file,
                            options.dry_run ? "would give back" : "gave back"));
  return kDone;
}

// What rules.md says of nop5-fork.
Result<void> check_forks(const SledCommandOptions& options, SledKind kind, const ElfFile& file) {
  if (kind != SledKind::nop5 || options.allow_fork) return {};
  const std::vector<std::string> how = fork_symbols(file);
  if (how.empty()) return {};
  return fail(
      ErrorCode::refused, "--kind=nop5",
      fmt::format("nop5-fork: the program forks (it takes {}): traced on Linux 6.17 to 7.1, "
                  "its children die where they pass a probe",
                  fmt::join(how, ", ")),
      "--kind=nop10, or --allow-fork where no child passes a probe");
}

// The file's original, where it is another file.
struct Original {
  const ElfFile& file;
  std::filesystem::path path;
};

// Sleds for a file that has none, or for the original of one that has.
Result<int> sled_file(const SledCommandOptions& options, const Input& given,
                      const std::optional<Original>& original, const SledOptions& sled_options,
                      const Terminal& terminal) {
  const ElfFile& file = original ? original->file : given.file;
  if (auto allowed = check_forks(options, sled_options.kind, file); !allowed) {
    return tl::unexpected(allowed.error());
  }
  // read -> flow -> plan: nothing is written yet.
  const ProbeFile probes = read_probes(file);
  const auto result = plan_sleds(file, probes, sled_options);
  if (!result) return tl::unexpected(result.error());
  warn_of_problems(options.file, file, terminal);
  Result<Plan> plan = result->plan;
  if (original) {
    const auto output = apply(result->plan, file.source());
    if (!output) return tl::unexpected(output.error());
    plan = plan_output(given.file.source(), *output, "the sleds anew");
  }
  if (!plan) return tl::unexpected(plan.error());
  // apply -> verify -> commit.
  warn_of_patchelf(options.file, file, result->plan, terminal);
  const CheckOptions check{.options = {.command = RewriteCommand::sled},
                           .second_opinion = options.second_opinion};
  const auto written =
      original ? write_output(options, *plan, given,
                              [&](const std::filesystem::path& output) {
                                return check_result(file, original->path, output, check, terminal);
                              })
               : write_checked(options, *plan, given, check, terminal);
  if (!written) return tl::unexpected(written.error());
  if (options.common.json) {
    print_json(plan_json(options, file, probes, *result));
  } else if (options.dry_run) {
    print_plan(probes, *result);
  }
  say_coverage(options, *result, terminal);
  say_index(options.file, result->index, terminal);
  const SledPlan& sleds = result->sleds;
  if (sleds.sites.empty() && sleds.refused.empty() && !probes.probes.empty()) {
    terminal.warning(options.file + ": no probe is selected, nothing to change");
  }
  // With -o the copy is there, as a build step expects it.
  const bool none = sleds.sites.empty() && !sleds.refused.empty() && options.output.empty();
  return none ? kRefused : kDone;
}

Result<int> nothing_to_change(const SledCommandOptions& options, const Input& input,
                              const Terminal& terminal) {
  const SledResult nothing;
  const auto written = write_output(options, nothing.plan, input, {});
  if (!written) return tl::unexpected(written.error());
  if (options.common.json)
    print_json(plan_json(options, input.file, read_probes(input.file), nothing));
  terminal.info(options.file + ": has its sleds already, nothing to change");
  return kDone;
}

// The file has sleds: they are planned anew from its original, with those that it had and those
// that are asked for, of the kind that it had or that is asked for.
Result<int> sled_again(const SledCommandOptions& options, const Input& input,
                       const Terminal& terminal) {
  auto earlier = earlier_sleds(input.file, read_probes(input.file));
  if (!earlier) {
    const bool asked = options.kind || !options.common.patterns.empty();
    if (asked) return tl::unexpected(earlier.error());
    return nothing_to_change(options, input, terminal);
  }
  const auto wanted = selection(options.common);
  const SledOptions sled_options{.kind = options.kind.value_or(earlier->kind),
                                 .guard = options.guard,
                                 .debuggable = options.debuggable,
                                 .selected = [&](const Probe& probe) {
                                   return earlier->sites.contains(probe.site) || !wanted ||
                                          wanted(probe);
                                 }};
  const ElfFile& original = earlier->original;
  const auto again = plan_sleds(original, read_probes(original), sled_options);
  if (!again) return tl::unexpected(again.error());
  const auto bytes = apply(again->plan, original.source());
  const auto now = input.file.source().slice(FileOffset{0}, Size{input.file.source().size()}, "");
  if (!bytes || !now || std::ranges::equal(*bytes, *now))
    return nothing_to_change(options, input, terminal);
  if (input.whole) {
    return fail(ErrorCode::refused, "", "data behind the ELF file, which the sleds would move",
                "reprobe sled --undo comes first");
  }
  const auto copy = TemporaryFile::of(
      *original.source().slice(FileOffset{0}, Size{original.source().size()}, "the original"));
  if (!copy) return tl::unexpected(copy.error());
  return sled_file(options, input, Original{original, copy->path()}, sled_options, terminal);
}

Result<int> sled_or_extend(const SledCommandOptions& options, const Terminal& terminal) {
  const auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  if (input->file.section(kUndoSection) != nullptr) return sled_again(options, *input, terminal);
  const SledOptions sled_options{.kind = options.kind.value_or(SledKind::nop10),
                                 .guard = options.guard,
                                 .debuggable = options.debuggable,
                                 .selected = selection(options.common)};
  return sled_file(options, *input, std::nullopt, sled_options, terminal);
}

}  // namespace

int run_sled(const SledCommandOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  const auto result =
      options.undo ? undo_file(options, terminal) : sled_or_extend(options, terminal);
  if (result) return *result;
  return report_failure(options, options.common, result.error(), terminal);
}

}  // namespace reprobe
