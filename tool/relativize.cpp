// reprobe relativize: read -> plan -> apply -> verify -> commit.

#include "libprobe/rewrite/index/relativize.hpp"

#include <fmt/format.h>

#include "libprobe/audit/read_probes.hpp"
#include "tool/check.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"
#include "tool/write.hpp"

namespace reprobe {
namespace {

Json plan_json(const RelativizeCommandOptions& options, const ElfFile& file,
               const RelativizePlan& result) {
  Json sites = Json::array();
  for (const IndexEntry& entry : result.index.entries) {
    sites.push_back(
        {{"provider", entry.provider}, {"name", entry.name}, {"site", hex(entry.site.value)}});
  }
  Json j = plan_head(options, result.plan);
  j["appended"] = result.plan.appended().size();
  j["removed"] = Json::array();
  j["sites"] = std::move(sites);
  j["index"] = {{"address", hex(result.address.value)}, {"dangling", result.dangling}};
  j["refused"] = Json::array();
  add_build_id(j, file);
  return j;
}

void print_plan(const RelativizePlan& result) {
  for (const IndexEntry& entry : result.index.entries) {
    fmt::print("index {} at {:#x}\n", printable(entry.provider + ":" + entry.name),
               entry.site.value);
  }
  print_edits(result.plan);
}

std::string summary(const RelativizeCommandOptions& options, const RelativizePlan& result) {
  const std::size_t count = result.index.entries.size();
  const std::string what = fmt::format("the index of {} probe{} at {:#x}", count,
                                       count == 1 ? "" : "s", result.address.value);
  if (result.plan.empty()) return fmt::format("{}: has {}, nothing to change", options.file, what);
  const std::string left =
      result.dangling == 0 ? "" : fmt::format(", left out {} dangling", result.dangling);
  return fmt::format("{}: {}{} {}{}; build-id kept", options.file, options.dry_run ? "would " : "",
                     result.renewed ? (options.dry_run ? "renew" : "renewed")
                                    : (options.dry_run ? "add" : "added"),
                     what, left);
}

Result<int> relativize_file(const RelativizeCommandOptions& options, const Terminal& terminal) {
  // read -> plan: nothing is written yet.
  const auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  const ProbeFile probes = read_probes(input->file);
  const RelativizeOptions wanted{.selected = selection(options.common)};
  const auto result = plan_relativize(input->file, probes, wanted);
  if (!result) return tl::unexpected(result.error());
  warn_of_problems(options.file, input->file, terminal);
  warn_of_patchelf(options.file, input->file, result->plan, terminal);
  // apply -> verify -> commit.
  const CheckOptions check{.options = {.command = RewriteCommand::relativize},
                           .second_opinion = options.second_opinion};
  const auto written = write_checked(options, result->plan, *input, check, terminal);
  if (!written) return tl::unexpected(written.error());
  if (options.common.json) {
    print_json(plan_json(options, input->file, *result));
  } else if (options.dry_run) {
    print_plan(*result);
  }
  terminal.info(summary(options, *result));
  return kDone;
}

}  // namespace

int run_relativize(const RelativizeCommandOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  const auto result = relativize_file(options, terminal);
  if (result) return *result;
  return report_failure(options, options.common, result.error(), terminal);
}

}  // namespace reprobe
