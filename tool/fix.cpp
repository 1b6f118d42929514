// reprobe fix: what is said of the repairs of a file.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "tool/debug_file.hpp"
#include "tool/link_inputs.hpp"
#include "tool/write.hpp"

namespace reprobe {
namespace {

std::string probe_text(const Probe& probe) {
  return fmt::format("{}:{} at {:#x}", probe.note.provider, probe.note.name, probe.site.value);
}

Json repairs_json(const FixPlan& fix, const ProbeFile& probes) {
  Json list = Json::array();
  for (const Repair& repair : fix.repairs) {
    Json item = {{"rule", repair.rule}, {"what", repair.what}};
    if (repair.probe) {
      const Probe& probe = probes.probes[*repair.probe];
      item["provider"] = probe.note.provider;
      item["name"] = probe.note.name;
      item["site"] = hex(probe.site.value);
    }
    list.push_back(std::move(item));
  }
  return list;
}

Json refused_json(const std::vector<Refusal>& refused) {
  Json list = Json::array();
  for (const Refusal& refusal : refused) {
    Json item = Json::object();
    if (!refusal.provider.empty()) item["provider"] = refusal.provider;
    if (!refusal.name.empty()) item["name"] = refusal.name;
    if (refusal.site) item["site"] = hex(refusal.site->value);
    if (!refusal.where.empty()) item["where"] = refusal.where;
    item["reason"] = refusal.reason;
    list.push_back(std::move(item));
  }
  return list;
}

void print_plan(const FixPlan& fix, const ProbeFile& probes) {
  for (const std::size_t i : fix.removed) {
    fmt::print("remove {}\n", printable(probe_text(probes.probes[i])));
    for (const std::string& why : probes.probes[i].evidence) {
      fmt::print("    {}\n", printable(why));
    }
  }
  for (const std::size_t i : fix.rewritten) {
    fmt::print("rewrite {}\n", printable(probe_text(probes.probes[i])));
  }
  if (fix.base) fmt::print("put .stapsdt.base at {:#x}\n", fix.base->value);
  for (const Repair& repair : fix.repairs) {
    if (repair.rule == repair::dangling || repair.rule == repair::ambiguous) continue;  // above
    const std::string about =
        repair.probe ? probe_text(probes.probes[*repair.probe]) + ": " : std::string();
    fmt::print("repair {}: {}\n", repair.rule, printable(about + repair.what));
  }
}

// "3 dangling", or with --remove-ambiguous "3 dangling and 1 ambiguous".
std::string removed_text(const FixPlan& fix, const ProbeFile& probes) {
  const auto doubtful = std::ranges::count_if(
      fix.removed, [&](std::size_t i) { return probes.probes[i].verdict == Verdict::ambiguous; });
  const auto proven = static_cast<std::ptrdiff_t>(fix.removed.size()) - doubtful;
  return doubtful == 0 ? fmt::format("{} dangling", proven)
                       : fmt::format("{} dangling and {} ambiguous", proven, doubtful);
}

// One line: what was done, or would be.
std::string summary(const FixCommandOptions& options, const ElfFile& file,
                    const Planned<FixedFile>& planned) {
  const ProbeFile& probes = planned.probes;
  const FixPlan& fix = planned.details.fix;
  const NotesFrom from = planned.details.from;
  const bool dry_run = options.write.dry_run;
  const bool restored = from == NotesFrom::debug_file || from == NotesFrom::index;
  const auto kept = std::ranges::count(probes.probes, Verdict::live, &Probe::verdict);
  const auto doubtful = std::ranges::count(probes.probes, Verdict::ambiguous, &Probe::verdict);
  std::string text =
      !restored ? fmt::format("{}: {} {}, kept {} live", options.file,
                              dry_run ? "would remove" : "removed", removed_text(fix, probes), kept)
                : fmt::format("{}: {} {} from {}, left out {} dangling", options.file,
                              dry_run ? "would bring back" : "brought back",
                              probes.probes.size() - fix.removed.size(),
                              from == NotesFrom::index ? "the index" : options.from_debug,
                              fix.removed.size());
  if (doubtful != 0 && !options.request.remove_ambiguous && !restored) {
    text += fmt::format(", left {} ambiguous", doubtful);
  }
  if (fix.base) text += fmt::format(", put .stapsdt.base at {:#x}", fix.base->value);
  if (!fix.rewritten.empty()) text += fmt::format(", rewrote {}", fix.rewritten.size());
  // Of the repairs that the numbers above do not show.
  std::set<std::string_view> others;
  for (const Repair& repair : fix.repairs) {
    if (!repair.probe && !repair.rule.starts_with("base-")) others.insert(repair.rule);
  }
  if (!others.empty()) text += fmt::format(", repaired {}", fmt::join(others, ", "));
  if (options.request.new_build_id) {
    text += "; new build-id";
  } else if (!file.build_id().empty()) {
    text += "; build-id kept";
  }
  return text;
}

std::string nothing_to_change(const FixCommandOptions& options) {
  const bool copied = options.write.output && !options.write.dry_run;
  return options.file + ": nothing to change" +
         (copied ? "; copied to " + options.write.output->string() : "");
}

// What the request names by paths, and what the result says.
struct Fix {
  FixCommandOptions options;
  LinkObjects objects{};
  std::optional<ElfFile> debug{};

  // --from-debug, --objects: as files.
  Result<void> read_others(const Input& input, const Terminal& terminal) {
    auto read = read_link_objects(options.objects);
    if (!read) return tl::unexpected(read.error());
    objects = std::move(*read);
    if (options.from_debug.empty()) return {};
    if (options.from_debug == "auto") {
      auto path = find_debug_file(options.file, input.with_payload());
      if (!path) return tl::unexpected(path.error());
      options.from_debug = std::move(*path);
      terminal.info("debug file: " + options.from_debug);
    }
    auto file = open_elf(options.from_debug);
    if (!file) {
      file.error().message = options.from_debug + ": " + file.error().message;
      return tl::unexpected(file.error());
    }
    debug = std::move(*file);
    return {};
  }

  Result<Planned<FixedFile>> plan(const Input& input, const Terminal& terminal) {
    if (auto read = read_others(input, terminal); !read) return tl::unexpected(read.error());
    FixRequest request = options.request;
    request.patterns = options.common.patterns;
    request.objects = &objects;
    request.from_debug = debug ? &*debug : nullptr;
    auto planned = reprobe::plan(input, request);
    if (!planned) return planned;
    for (const Refusal& refusal : planned->details.fix.refused) {
      const std::string what =
          !debug ? "left as it is" : fmt::format("{}:{} left out", refusal.provider, refusal.name);
      planned->warnings.push_back(fmt::format("[{}] {}: {}", refusal.where, what, refusal.reason));
    }
    return planned;
  }

  void describe(Json& json, const ElfFile& file, const Planned<FixedFile>& planned) const {
    const FixPlan& fix = planned.details.fix;
    json["appended"] = fix.plan.appended().size();
    json["removed"] = Json::array();
    for (const std::size_t i : fix.removed) {
      json["removed"].push_back(probe_json(planned.probes.probes[i], file.header()));
    }
    json["sites"] = Json::array();
    json["repairs"] = repairs_json(fix, planned.probes);
    json["refused"] = refused_json(fix.refused);
    add_index(json, planned.details.index);
    add_build_id(json, file, planned.details.new_build_id);
  }

  void print(const Planned<FixedFile>& planned) const {
    print_plan(planned.details.fix, planned.probes);
  }

  int say(const Planned<FixedFile>& planned, const ElfFile& file, const Terminal& terminal) const {
    const FixPlan& fix = planned.details.fix;
    for (const std::size_t i : fix.removed) {
      const Probe& probe = planned.probes.probes[i];
      terminal.detail(fmt::format("{}: remove {}: {}", options.file, probe_text(probe),
                                  fmt::join(probe.evidence, "; ")));
    }
    // Their neighbours were the evidence: the repaired file may show them as live.
    const auto doubtful =
        std::ranges::count(planned.probes.probes, Verdict::ambiguous, &Probe::verdict);
    if (!fix.removed.empty() && doubtful != 0 && !options.request.remove_ambiguous && !debug) {
      terminal.warning(fmt::format(
          "{}: {} ambiguous left; without the removed notes less may speak against them: decide on "
          "the input with reprobe audit, --remove-ambiguous -p removes them",
          options.file, doubtful));
    }
    terminal.info(fix.plan.empty() ? nothing_to_change(options) : summary(options, file, planned));
    say_index(options.file, planned.details.index, terminal);
    return fix.refused.empty() ? kDone : kRefused;
  }
};

}  // namespace

int run_fix(const FixCommandOptions& options) { return run_rewrite(options, Fix{options}); }

}  // namespace reprobe
