// reprobe guards: read -> find the checks -> plan -> apply -> verify -> commit; --to restore gives
// the input back.

#include "libprobe/rewrite/guards/guards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/undo.hpp"
#include "tool/check.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/json.hpp"
#include "tool/options.hpp"
#include "tool/write.hpp"

namespace reprobe {
namespace {

const Note& note_of(const ProbeFile& probes, const GuardCounter& counter) {
  return probes.probes[counter.probes.front()].note;
}

Json plan_json(const GuardsCommandOptions& options, const ElfFile& file, const ProbeFile& probes,
               const GuardsResult& result) {
  Json guards = Json::array();
  Json refused = Json::array();
  for (const GuardOutcome& outcome : result.outcomes) {
    const GuardCounter& counter = result.counters[outcome.counter];
    Json item = {{"provider", note_of(probes, counter).provider},
                 {"name", note_of(probes, counter).name},
                 {"semaphore", hex(counter.address.value)},
                 {"at", hex(outcome.at.value)},
                 {"what", outcome.what}};
    if (!outcome.reason.empty()) {
      item["reason"] = outcome.reason;
      refused.push_back(std::move(item));
      continue;
    }
    item["tactic"] = outcome.tactic;
    if (options.to == GuardsCommand::site) {
      item["site"] = hex(counter.site.value);
      for (const VirtAddr other : counter.others) item["other_sites"].push_back(hex(other.value));
    }
    guards.push_back(std::move(item));
  }
  Json j = plan_head(options, result.plan);
  j["appended"] = result.plan.appended().size();
  j["removed"] = Json::array();
  j["guards"] = std::move(guards);
  j["refused"] = std::move(refused);
  if (Json followed = index_json(result.index); !followed.is_null()) {
    j["index"] = std::move(followed);
  }
  add_build_id(j, file);
  return j;
}

void print_plan(const GuardsCommandOptions& options, const ProbeFile& probes,
                const GuardsResult& result) {
  for (const GuardOutcome& outcome : result.outcomes) {
    const GuardCounter& counter = result.counters[outcome.counter];
    const Note& note = note_of(probes, counter);
    const std::string name = printable(note.provider + ":" + note.name);
    if (!outcome.reason.empty()) {
      fmt::print("leave {} at {:#x} of {}: {}\n", outcome.what, outcome.at.value, name,
                 outcome.reason);
    } else if (options.to == GuardsCommand::on) {
      fmt::print("set {} at {:#x} of {} to 1\n", outcome.what, outcome.at.value, name);
    } else {
      fmt::print("guard {} at {:#x} of {}: {}, looks at {:#x}\n", outcome.what, outcome.at.value,
                 name, outcome.tactic, counter.site.value);
    }
  }
  print_edits(result.plan);
}

// "FILE: guards: 251/252 (99.6%)", what was left, by reason, and what the result means.
void say_coverage(const GuardsCommandOptions& options, const ProbeFile& probes,
                  const GuardsResult& result, const Terminal& terminal) {
  const std::size_t all = result.outcomes.size();
  std::map<std::string, std::size_t> reasons;
  for (const GuardOutcome& outcome : result.outcomes)
    if (!outcome.reason.empty()) ++reasons[outcome.reason];
  std::size_t done = all;
  for (const auto& [reason, count] : reasons) done -= count;
  if (all == 0) {
    terminal.info(options.file + ": nothing checks a counter, nothing to change");
    return;
  }
  terminal.info(fmt::format("{}: {}: {}/{} ({:.1f}%)", options.file,
                            options.to == GuardsCommand::on ? "counters set" : "guards", done, all,
                            100.0 * static_cast<double>(done) / static_cast<double>(all)));
  for (const auto& [reason, count] : reasons)
    terminal.info(fmt::format("{}: left as they are: {}: {}", options.file, count, reason));
  if (options.to != GuardsCommand::site) return;
  std::vector<bool> mentioned(result.counters.size());
  for (const GuardOutcome& outcome : result.outcomes) mentioned[outcome.counter] = true;
  const auto unused = std::ranges::count(mentioned, false);
  if (unused != 0) {
    terminal.info(
        fmt::format("{}: {} counters that nothing in the file checks stay", options.file, unused));
  }
  for (const GuardCounter& counter : result.counters) {
    if (!counter.reason.empty() || counter.sites.front() == counter.sites.back()) continue;
    const Note& note = note_of(probes, counter);
    const std::string where = counter.others.empty()
                                  ? fmt::format("{:#x} alone", counter.site.value)
                                  : fmt::format("all {} of them", counter.others.size() + 1);
    terminal.info(fmt::format("{}: {}:{} has several sites; its checks look at {}", options.file,
                              printable(note.provider), printable(note.name), where));
  }
}

Result<int> restore(const GuardsCommandOptions& options, const Terminal& terminal) {
  const auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  const Section* record = guards_record(input->file);
  if (record == nullptr) {
    return fail(ErrorCode::refused, "", "its guards were not rewritten",
                "only reprobe guards writes the record that gives the original back");
  }
  // plan_undo() compares the SHA-256 of what it gives.
  const auto plan = plan_undo(input->file, record->name);
  if (!plan) return tl::unexpected(plan.error());
  const auto written = write_output(options, *plan, *input, {});
  if (!written) return tl::unexpected(written.error());
  if (options.common.json) {
    Json j = plan_head(options, *plan);
    j["size"] = plan->kept(input->file.source()).value;
    print_json(j);
  } else if (options.dry_run) {
    print_edits(*plan);
  }
  terminal.info(fmt::format("{}: {} the original", options.file,
                            options.dry_run ? "would give back" : "gave back"));
  return kDone;
}

Result<ExportedCounters> exported_counters(const GuardsCommandOptions& options) {
  ExportedCounters exported{
      .allowed = options.allow_exported, .with_others = !options.with.empty(), .referred = {}};
  for (const std::string& path : options.with) {
    const auto source = map_input(path);
    if (!source) return tl::unexpected(source.error());
    const auto other = open_elf(*source);
    if (!other) return tl::unexpected(other.error());
    add_referred_names(*other, exported.referred);
  }
  return exported;
}

Result<int> guard_file(const GuardsCommandOptions& options, const Terminal& terminal) {
  const auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  const ProbeFile probes = read_probes(input->file);
  auto exported = exported_counters(options);
  if (!exported) return tl::unexpected(exported.error());
  const GuardsOptions guards{.to = options.to == GuardsCommand::on ? GuardsTo::on : GuardsTo::site,
                             .selected = selection(options.common),
                             .exported = std::move(*exported)};
  const auto result = plan_guards(input->file, probes, guards);
  if (!result) return tl::unexpected(result.error());
  warn_of_problems(options.file, input->file, terminal);
  warn_of_patchelf(options.file, input->file, result->plan, terminal);
  // Where no check is rewritten, a stale index is all that changes: that is relativize's proof.
  const bool rewritten = std::ranges::any_of(
      result->outcomes, [](const GuardOutcome& outcome) { return outcome.reason.empty(); });
  RewriteCommand command =
      options.to == GuardsCommand::on ? RewriteCommand::guards_on : RewriteCommand::guards_site;
  if (!rewritten && result->index.fate != IndexFate::none) command = RewriteCommand::relativize;
  const CheckOptions check{.options = {.command = command},
                           .second_opinion = options.second_opinion};
  const auto written = write_checked(options, result->plan, *input, check, terminal);
  if (!written) return tl::unexpected(written.error());
  if (options.common.json) {
    print_json(plan_json(options, input->file, probes, *result));
  } else if (options.dry_run) {
    print_plan(options, probes, *result);
  }
  if (result->already) {
    terminal.info(options.file + ": its guards were rewritten already, nothing to change");
    return kDone;
  }
  say_index(options.file, result->index, terminal);
  if (result->counters.empty()) {
    terminal.info(options.file + ": no probe with a counter, nothing to change");
    return kDone;
  }
  say_coverage(options, probes, *result, terminal);
  return result->plan.empty() && !result->outcomes.empty() ? kRefused : kDone;
}

}  // namespace

int run_guards(const GuardsCommandOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  const auto result = options.to == GuardsCommand::restore ? restore(options, terminal)
                                                           : guard_file(options, terminal);
  if (result) return *result;
  return report_failure(options, options.common, result.error(), terminal);
}

}  // namespace reprobe
