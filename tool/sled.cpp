// reprobe sled: read -> flow -> plan -> apply -> verify -> commit; --undo gives the input back.

#include "libprobe/rewrite/sled/sled.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/fork_symbols.hpp"
#include "libprobe/plan/undo.hpp"
#include "tool/check.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"
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
    fmt::print("sled {} at {:#x}: {} to {:#x}\n", names(site.site), site.site.value,
               to_string(site.tactic), to.value);
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
  terminal.info(
      fmt::format("{}: sleds: {}/{} ({:.1f}%)", options.file, done, all,
                  all == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(all)));
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
Result<void> check_forks(const SledCommandOptions& options, const ElfFile& file) {
  if (options.kind != SledKind::nop5 || options.allow_fork) return {};
  const std::vector<std::string> how = fork_symbols(file);
  if (how.empty()) return {};
  return fail(
      ErrorCode::refused, "--kind=nop5",
      fmt::format("nop5-fork: the program forks (it takes {}): traced on Linux 6.17 to 7.1, "
                  "its children die where they pass a probe",
                  fmt::join(how, ", ")),
      "--kind=nop10, or --allow-fork where no child passes a probe");
}

Result<int> sled_file(const SledCommandOptions& options, const Terminal& terminal) {
  // read -> flow -> plan: nothing is written yet.
  const auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  if (auto allowed = check_forks(options, input->file); !allowed) {
    return tl::unexpected(allowed.error());
  }
  const ProbeFile probes = read_probes(input->file);
  const SledOptions sled_options{
      .kind = options.kind, .guard = options.guard, .selected = selection(options.common)};
  const auto result = plan_sleds(input->file, probes, sled_options);
  if (!result) return tl::unexpected(result.error());
  warn_of_problems(options.file, input->file, terminal);
  warn_of_patchelf(options.file, input->file, result->plan, terminal);
  // apply -> verify -> commit.
  const CheckOptions check{.options = {.command = RewriteCommand::sled},
                           .second_opinion = options.second_opinion};
  const auto written = write_checked(options, result->plan, *input, check, terminal);
  if (!written) return tl::unexpected(written.error());
  if (options.common.json) {
    print_json(plan_json(options, input->file, probes, *result));
  } else if (options.dry_run) {
    print_plan(probes, *result);
  }
  if (result->already) {
    terminal.info(options.file + ": has its sleds already, nothing to change");
    return kDone;
  }
  say_coverage(options, *result, terminal);
  say_index(options.file, result->index, terminal);
  const bool none = result->sleds.sites.empty() && !result->sleds.refused.empty();
  return none ? kRefused : kDone;
}

}  // namespace

int run_sled(const SledCommandOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  const auto result = options.undo ? undo_file(options, terminal) : sled_file(options, terminal);
  if (result) return *result;
  terminal.error(options.file, result.error());
  return exit_code(result.error().code);
}

}  // namespace reprobe
