// reprobe fix: read -> audit -> plan -> apply -> verify -> commit.

#include "libprobe/rewrite/fix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/audit/rules.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/notes/legacy.hpp"
#include "libprobe/notes/rules.hpp"
#include "libprobe/rewrite/build_id.hpp"
#include "libprobe/rewrite/from_debug.hpp"
#include "libprobe/rewrite/index/from_index.hpp"
#include "libprobe/rewrite/index/renew.hpp"
#include "libprobe/rewrite/legacy/upgrade.hpp"
#include "libprobe/rewrite/other_section.hpp"
#include "tool/check.hpp"
#include "tool/debug_file.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/fix_symbols.hpp"
#include "tool/json.hpp"
#include "tool/link_inputs.hpp"
#include "tool/options.hpp"
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

Json plan_json(const FixCommandOptions& options, const ElfFile& file, const ProbeFile& probes,
               const FixPlan& fix, const RenewedIndex& index, const SiteSymbolsPlan* symbols,
               const std::string& new_id) {
  Json removed = Json::array();
  for (const std::size_t i : fix.removed) {
    removed.push_back(probe_json(probes.probes[i], file.header()));
  }
  Json refused = Json::array();
  for (const Refusal& refusal : fix.refused) {
    Json item = Json::object();
    if (!refusal.provider.empty()) item["provider"] = refusal.provider;
    if (!refusal.name.empty()) item["name"] = refusal.name;
    if (refusal.site) item["site"] = hex(refusal.site->value);
    if (!refusal.where.empty()) item["where"] = refusal.where;
    item["reason"] = refusal.reason;
    refused.push_back(std::move(item));
  }
  Json j = plan_head(options, fix.plan);
  j["appended"] = fix.plan.appended().size();
  j["removed"] = std::move(removed);
  j["sites"] = Json::array();
  j["repairs"] = repairs_json(fix, probes);
  j["refused"] = std::move(refused);
  if (symbols != nullptr) j["symbols"] = symbols_json(*symbols);
  if (Json followed = index_json(index); !followed.is_null()) j["index"] = std::move(followed);
  add_build_id(j, file, new_id);
  return j;
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
  print_edits(fix.plan);
}

struct Planned {
  Input input;
  ProbeFile probes;
  FixPlan fix;
  std::optional<ElfFile> debug;  // --from-debug
  bool from_index{};             // the notes were gone, and come from the index
  RenewedIndex index{};
  std::optional<SiteSymbolsPlan> symbols{};  // --symbols
};

// "3 dangling", or with --remove-ambiguous "3 dangling and 1 ambiguous".
std::string removed_text(const FixPlan& fix, const ProbeFile& probes) {
  const auto doubtful = std::ranges::count_if(
      fix.removed, [&](std::size_t i) { return probes.probes[i].verdict == Verdict::ambiguous; });
  const auto proven = static_cast<std::ptrdiff_t>(fix.removed.size()) - doubtful;
  return doubtful == 0 ? fmt::format("{} dangling", proven)
                       : fmt::format("{} dangling and {} ambiguous", proven, doubtful);
}

// One line: what was done, or would be.
std::string summary(const FixCommandOptions& options, const Planned& planned) {
  const ElfFile& file = planned.input.file;
  const ProbeFile& probes = planned.probes;
  const FixPlan& fix = planned.fix;
  const bool restored = !options.from_debug.empty() || planned.from_index;
  const auto kept = std::ranges::count(probes.probes, Verdict::live, &Probe::verdict);
  const auto doubtful = std::ranges::count(probes.probes, Verdict::ambiguous, &Probe::verdict);
  std::string text =
      !restored
          ? fmt::format("{}: {} {}, kept {} live", options.file,
                        options.dry_run ? "would remove" : "removed", removed_text(fix, probes),
                        kept)
          : fmt::format("{}: {} {} from {}, left out {} dangling", options.file,
                        options.dry_run ? "would bring back" : "brought back",
                        probes.probes.size() - fix.removed.size(),
                        planned.from_index ? "the index" : options.from_debug, fix.removed.size());
  if (doubtful != 0 && !options.remove_ambiguous && !restored) {
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
  if (planned.symbols) text += symbols_text(*planned.symbols, options.dry_run);
  if (!file.build_id().empty()) text += options.new_build_id ? "; new build-id" : "; build-id kept";
  return text;
}

std::string nothing_to_change(const FixCommandOptions& options) {
  const bool copied = !options.output.empty() && !options.dry_run;
  return options.file + ": nothing to change" + (copied ? "; copied to " + options.output : "");
}

// Does a repair that was made mend what the finding is about?
bool is_mended(const Finding& finding, const FixPlan& fix) {
  constexpr std::array kMended = {rule::note_align,    rule::note_namesz, rule::note_type,
                                  rule::note_args_nul, rule::note_descsz, rule::note_padding,
                                  rule::note_gap};
  // Of these the plan tells.
  if (std::ranges::find(fix.repairs, finding.rule, &Repair::rule) != fix.repairs.end()) return true;
  // A note that could not be decoded has no name and stays as it is.
  const bool undecoded = finding.rule == rule::note_type && finding.name.empty();
  return !undecoded && std::ranges::find(kMended, finding.rule) != kMended.end();
}

// ".note.stapsdt+0x48"; the section alone where it is about its first byte, or all of it.
std::string where_of(const Finding& finding, const ElfFile& file) {
  const std::uint64_t at = finding.note_offset.value_or(0);
  for (const Section& section : file.sections()) {
    if (section.name == kStapsdtSection && in_range(at, section.offset.value, section.size.value)) {
      const std::uint64_t offset = at - section.offset.value;
      return offset == 0 ? section.name : fmt::format("{}+{:#x}", section.name, offset);
    }
  }
  return std::string(kStapsdtSection);
}

// What the audit calls an error and a rewrite leaves: silence would pass for success.
// A repair that was not chosen is not asked for.
void refuse_the_rest(FixPlan& fix, const ElfFile& file, const ProbeFile& probes,
                     const RepairChoice& choice) {
  for (const Finding& finding : probes.scan.findings) {
    const bool asked = choice.wants(finding.rule);
    if (finding.severity != Severity::error || !asked || is_mended(finding, fix)) continue;
    fix.refused.push_back({finding.provider, finding.name, std::nullopt, where_of(finding, file),
                           finding.rule + ": " + finding.message});
  }
}

// Probes behind such a counter never fire, whatever their notes say.
void refuse_dead_counters(FixPlan& fix, const ElfFile& file, const ProbeFile& probes) {
  for (const Finding& finding : counters_beyond_repair(file, probes)) {
    const std::optional<VirtAddr> site =
        finding.site ? std::optional(VirtAddr{*finding.site}) : std::nullopt;
    fix.refused.push_back({finding.provider, finding.name, site, std::string(kProbesSection),
                           fmt::format("{}: {}; {}", finding.rule, finding.message, finding.hint)});
  }
}

// The notes of the debug file take the place of the file's own.
Result<Planned> plan_from_debug_file(const FixCommandOptions& options, Input input) {
  auto source = map_input(options.from_debug);
  auto debug = source ? open_elf(std::move(*source)) : tl::unexpected(source.error());
  if (!debug) {
    debug.error().message = options.from_debug + ": " + debug.error().message;
    return tl::unexpected(debug.error());
  }
  const auto wanted = [&](const Probe& probe) {
    return selected(options.common.patterns, probe.note);
  };
  auto restored = plan_from_debug(input.file, *debug, wanted);
  if (!restored) return tl::unexpected(restored.error());
  ProbeFile probes;
  probes.probes = std::move(restored->probes);
  return Planned{std::move(input), std::move(probes), std::move(restored->fix), std::move(*debug)};
}

// The notes come back together: an index of which some are left would be cut to them.
Result<Planned> plan_from_own_index(const FixCommandOptions& options, Input input) {
  if (!options.common.patterns.empty()) {
    return fail(ErrorCode::refused, std::string(kIndexSection),
                "the notes are gone, and come back from the index together", "leave out -p");
  }
  auto restored = plan_from_index(input.file);
  if (!restored) return tl::unexpected(restored.error());
  ProbeFile probes;
  probes.probes = std::move(restored->probes);
  Planned planned{std::move(input), std::move(probes), std::move(restored->fix), std::nullopt};
  planned.from_index = true;
  return planned;
}

// The records are read together or not at all: -p does not choose among them.
bool wants_upgrade(const FixCommandOptions& options, const RepairChoice& choice) {
  return options.upgrade && options.common.patterns.empty() && choice.wants(repair::legacy_record);
}

Result<Planned> plan_upgraded(Input input, const LegacyProbes& legacy, const FixOptions& options) {
  auto upgrade = plan_upgrade(input.file, legacy, options);
  if (!upgrade) return tl::unexpected(upgrade.error());
  ProbeFile probes;
  probes.probes = std::move(upgrade->probes);
  return Planned{std::move(input), std::move(probes), std::move(upgrade->fix), std::nullopt};
}

Result<Planned> plan_notes(const FixCommandOptions& options, const LinkObjects& objects) {
  const auto choice = RepairChoice::of(options.only, options.skip);
  if (!choice) return tl::unexpected(choice.error());
  auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  if (!options.from_debug.empty()) return plan_from_debug_file(options, std::move(*input));
  if (choice->wants(repair::notes_stripped) && can_restore_from_index(input->file)) {
    return plan_from_own_index(options, std::move(*input));
  }
  const ElfFile& file = input->file;
  ProbeFile probes = read_probes(file, &objects);
  FixOptions fix_options;
  fix_options.objects = &objects;
  fix_options.remove_ambiguous = options.remove_ambiguous;
  fix_options.respell = options.respell;
  fix_options.repairs = *choice;
  fix_options.selected = selection(options.common);
  if (wants_upgrade(options, *choice)) {
    const LegacyProbes legacy = read_legacy(file);
    if (legacy.found()) return plan_upgraded(std::move(*input), legacy, fix_options);
  }
  if (probes.probes.empty() && choice->wants(repair::other_section)) {
    auto others = plan_other_section(file, fix_options);
    if (!others) return tl::unexpected(others.error());
    if (*others) {
      return Planned{std::move(*input), std::move((*others)->probes), std::move((*others)->fix),
                     std::nullopt};
    }
  }
  auto fix = plan_fix(file, probes, fix_options);
  if (!fix) return tl::unexpected(fix.error());
  // -p narrows the work to some probes; what is wrong with others is not asked.
  if (options.common.patterns.empty()) {
    refuse_the_rest(*fix, file, probes, *choice);
    if (options.only.empty()) refuse_dead_counters(*fix, file, probes);
  }
  return Planned{std::move(*input), std::move(probes), std::move(*fix), std::nullopt};
}

Result<Planned> plan_file(const FixCommandOptions& options, const LinkObjects& objects) {
  auto planned = plan_notes(options, objects);
  if (!planned) return planned;
  const ElfFile& file = planned->input.file;
  FixPlan& fix = planned->fix;
  auto index = renew_index(fix.plan, file);
  if (!index) return tl::unexpected(index.error());
  planned->index = std::move(*index);
  if (planned->index.fate != IndexFate::none) fix.changed_sections.emplace_back(kIndexSection);
  if (options.new_build_id && (!fix.plan.empty() || !file.build_id_range())) {
    auto renewed = renew_build_id(fix.plan, file);
    if (!renewed) return tl::unexpected(renewed.error());
    fix.changed_sections.emplace_back(".note.gnu.build-id");
  }
  if (options.symbols == SiteSymbolsMode::write) {
    auto symbols = add_site_symbols(fix, file);
    if (!symbols) return tl::unexpected(symbols.error());
    planned->symbols = std::move(*symbols);
  }
  return planned;
}

// The id that the output has, read from the plan's own edit.
std::string id_after(const Planned& planned) {
  const auto range = planned.input.file.build_id_range();
  const auto output = range ? apply(planned.fix.plan, planned.input.file.source()) : Bytes{};
  if (!range || !output) return "";
  const auto file = ElfFile::open(borrowed_source(*output));
  return file ? file->build_id() : "";
}

Result<int> fix_file(const FixCommandOptions& options, const Terminal& terminal) {
  // read -> audit -> plan: nothing is written yet.
  const auto objects = read_link_objects(options.objects);
  if (!objects) return tl::unexpected(objects.error());
  const auto planned = plan_file(options, *objects);
  if (!planned) return tl::unexpected(planned.error());
  const FixPlan& fix = planned->fix;
  warn_of_problems(options.file, planned->input.file, terminal);
  for (const Refusal& refusal : fix.refused) {
    const std::string what = options.from_debug.empty()
                                 ? "left as it is"
                                 : fmt::format("{}:{} left out", refusal.provider, refusal.name);
    terminal.warning(
        fmt::format("{}: [{}] {}: {}", options.file, refusal.where, what, refusal.reason));
  }
  // apply -> verify -> commit: the result is checked before it takes the file's place.
  const CheckOptions check{
      .options = {.command = RewriteCommand::fix,
                  .allow_removed_ambiguous = options.remove_ambiguous,
                  .allow_new_build_id = options.new_build_id,
                  .notes_from = planned->debug ? &*planned->debug : nullptr,
                  .allow_respelled = options.respell,
                  .allow_site_symbols = options.symbols == SiteSymbolsMode::write,
                  .objects = &*objects},
      .second_opinion = options.second_opinion,
      .changed_sections = fix.changed_sections};
  const auto written = write_checked(options, fix.plan, planned->input, check, terminal);
  if (!written) return tl::unexpected(written.error());
  if (options.common.json) {
    print_json(plan_json(options, planned->input.file, planned->probes, fix, planned->index,
                         planned->symbols ? &*planned->symbols : nullptr,
                         options.new_build_id ? id_after(*planned) : ""));
  } else if (options.dry_run) {
    print_plan(fix, planned->probes);
  }
  for (const std::size_t i : fix.removed) {
    const Probe& probe = planned->probes.probes[i];
    terminal.detail(fmt::format("{}: remove {}: {}", options.file, probe_text(probe),
                                fmt::join(probe.evidence, "; ")));
  }
  // Their neighbours were the evidence: the repaired file may show them as live.
  const auto doubtful =
      std::ranges::count(planned->probes.probes, Verdict::ambiguous, &Probe::verdict);
  if (!fix.removed.empty() && doubtful != 0 && !options.remove_ambiguous &&
      options.from_debug.empty()) {
    terminal.warning(fmt::format(
        "{}: {} ambiguous left; without the removed notes less may speak against them: decide on "
        "the input with reprobe audit, --remove-ambiguous -p removes them",
        options.file, doubtful));
  }
  terminal.info(fix.plan.empty() ? nothing_to_change(options) : summary(options, *planned));
  say_index(options.file, planned->index, terminal);
  return fix.refused.empty() ? kDone : kRefused;
}

}  // namespace

int run_fix(const FixCommandOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  auto found = with_debug_file(options);
  if (found && options.from_debug == "auto") terminal.info("debug file: " + found->from_debug);
  const bool undo = options.symbols == SiteSymbolsMode::undo;
  const auto result = !found ? tl::unexpected(found.error())
                      : undo ? undo_site_symbols(*found, terminal)
                             : fix_file(*found, terminal);
  if (result) return *result;
  terminal.error(options.file, result.error());
  return exit_code(result.error().code);
}

}  // namespace reprobe
