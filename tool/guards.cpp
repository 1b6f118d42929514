// reprobe guards: what is said of the checks of counters; --to restore gives the input back.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tool/write.hpp"

namespace reprobe {
namespace {

const Note& note_of(const ProbeFile& probes, const GuardCounter& counter) {
  return probes.probes[counter.probes.front()].note;
}

void describe_guards(Json& j, const GuardsCommandOptions& options, const ProbeFile& probes,
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
  j["guards"] = std::move(guards);
  j["refused"] = std::move(refused);
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

Result<ExportedCounters> exported_counters(const GuardsCommandOptions& options) {
  ExportedCounters exported{
      .allowed = options.allow_exported, .with_others = !options.with.empty(), .referred = {}};
  for (const std::string& path : options.with) {
    const auto other = open_elf(path);
    if (!other) return tl::unexpected(other.error());
    add_referred_names(*other, exported.referred);
  }
  return exported;
}

struct Guards {
  const GuardsCommandOptions& options;

  Result<Planned<GuardsResult>> plan(const Input& input, const Terminal&) const {
    auto exported = exported_counters(options);
    if (!exported) return tl::unexpected(exported.error());
    return reprobe::plan(
        input, GuardsRequest{.patterns = options.common.patterns,
                             .to = options.to == GuardsCommand::on ? GuardsTo::on : GuardsTo::site,
                             .exported = std::move(*exported)});
  }

  void describe(Json& json, const ElfFile& file, const Planned<GuardsResult>& planned) const {
    json["appended"] = planned.plan().appended().size();
    json["removed"] = Json::array();
    describe_guards(json, options, planned.probes, planned.details);
    add_index(json, planned.details.index);
    add_build_id(json, file);
  }

  void print(const Planned<GuardsResult>& planned) const {
    print_plan(options, planned.probes, planned.details);
  }

  int say(const Planned<GuardsResult>& planned, const ElfFile&, const Terminal& terminal) const {
    const GuardsResult& result = planned.details;
    if (result.already) {
      terminal.info(options.file + ": its guards were rewritten already, nothing to change");
      return kDone;
    }
    say_index(options.file, result.index, terminal);
    if (result.counters.empty()) {
      terminal.info(options.file + ": no probe with a counter, nothing to change");
      return kDone;
    }
    say_coverage(options, planned.probes, result, terminal);
    return result.plan.empty() && !result.outcomes.empty() ? kRefused : kDone;
  }
};

}  // namespace

int run_guards(const GuardsCommandOptions& options) {
  if (options.to == GuardsCommand::restore) return run_undo(options, UndoRequest::Of::guards);
  return run_rewrite(options, Guards{options});
}

}  // namespace reprobe
