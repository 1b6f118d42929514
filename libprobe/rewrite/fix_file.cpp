#include "libprobe/rewrite/fix_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libprobe/audit/legacy_probes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/audit/rules.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/notes/legacy.hpp"
#include "libprobe/notes/rules.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/probes/select.hpp"
#include "libprobe/rewrite/build_id.hpp"
#include "libprobe/rewrite/counter_page.hpp"
#include "libprobe/rewrite/from_debug.hpp"
#include "libprobe/rewrite/index/from_index.hpp"
#include "libprobe/rewrite/legacy/upgrade.hpp"
#include "libprobe/rewrite/other_section.hpp"

namespace reprobe {
namespace {

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
Result<void> refuse_dead_counters(FixPlan& fix, const ElfFile& file) {
  const auto after = ElfFile::open(planned_source(file.source(), fix.plan));
  if (!after) return tl::unexpected(after.error());
  for (const Finding& finding : counters_beyond_repair(*after, read_probes(*after))) {
    const std::optional<VirtAddr> site =
        finding.site ? std::optional(VirtAddr{*finding.site}) : std::nullopt;
    fix.refused.push_back({finding.provider, finding.name, site, std::string(kProbesSection),
                           fmt::format("{}: {}; {}", finding.rule, finding.message, finding.hint)});
  }
  return {};
}

// Not where some probes or repairs are chosen that are not about counters.
Result<void> repair_counters(FixPlan& fix, const ElfFile& file, const FixRequest& request,
                             const RepairChoice& choice) {
  if (!request.patterns.empty()) return {};
  if (choice.wants(repair::semaphore_relro_page)) {
    if (auto done = give_counters_pages(fix, file); !done) return done;
  }
  const bool asked = request.only.empty() && request.from_debug == nullptr;
  return asked ? refuse_dead_counters(fix, file) : Result<void>{};
}

// What gives the notes back in full: a repair of each kind returns the probes with its plan.
template <typename Restored>
Result<FixedFile> taken_from(NotesFrom source, Result<Restored> restored) {
  if (!restored) return tl::unexpected(restored.error());
  FixedFile fixed;
  fixed.fix = std::move(restored->fix);
  fixed.probes.probes = std::move(restored->probes);
  fixed.from = source;
  return fixed;
}

// The notes come back together: an index of which some are left would be cut to them.
Result<FixedFile> plan_from_own_index(const ElfFile& file, const FixRequest& request) {
  if (!request.patterns.empty()) {
    return fail(ErrorCode::refused, std::string(kIndexSection),
                "the notes are gone, and come back from the index together", "leave out -p");
  }
  return taken_from(NotesFrom::index, plan_from_index(file));
}

// Where the notes come from, and what they need to be right there.
Result<FixedFile> plan_notes(const ElfFile& file, const FixRequest& request,
                             const RepairChoice& choice) {
  const auto wanted = selection(request.patterns);
  // A strip took them: from the debug file that was named, or from the index that the file has.
  if (request.from_debug != nullptr) {
    return taken_from(NotesFrom::debug_file, plan_from_debug(file, *request.from_debug, wanted));
  }
  if (choice.wants(repair::notes_stripped) && can_restore_from_index(file)) {
    return plan_from_own_index(file, request);
  }
  const FixOptions options{.remove_ambiguous = request.remove_ambiguous,
                           .respell = request.respell,
                           .selected = wanted,
                           .repairs = choice,
                           .objects = request.objects};
  // The file is older than notes: from its records. They are read together or not at all, so that
  // -p does not choose among them.
  if (request.upgrade && request.patterns.empty() && choice.wants(repair::legacy_record)) {
    const LegacyProbes legacy = read_legacy(file);
    if (legacy.found()) {
      return taken_from(NotesFrom::records, plan_upgrade(file, legacy, options));
    }
  }
  FixedFile fixed;
  fixed.probes = read_probes(file, request.objects);
  // A linker script put them into a section of another name.
  if (fixed.probes.probes.empty() && choice.wants(repair::other_section)) {
    auto others = plan_other_section(file, options);
    if (!others) return tl::unexpected(others.error());
    if (*others) {
      return FixedFile{std::move((*others)->fix),
                       std::move((*others)->probes),
                       NotesFrom::other_section,
                       {},
                       {}};
    }
  }
  // They are where tracers look.
  auto fix = plan_fix(file, fixed.probes, options);
  if (!fix) return tl::unexpected(fix.error());
  fixed.fix = std::move(*fix);
  return fixed;
}

// The id that the output has, read from the output.
std::string id_after(const ElfFile& file, const Plan& plan) {
  const auto output = ElfFile::open(planned_source(file.source(), plan));
  return output ? output->build_id() : "";
}

}  // namespace

Result<FixedFile> plan_fix_file(const ElfFile& file, const FixRequest& request) {
  // Which repairs there are to be: --only and --skip.
  const auto choice = RepairChoice::of(request.only, request.skip);
  if (!choice) return tl::unexpected(choice.error());

  // Notes: found, brought back or written from records; then base, dangling notes, spelling,
  // counters and order, as repairs/ have them.
  auto fixed = plan_notes(file, request, *choice);
  if (!fixed) return fixed;
  FixPlan& fix = fixed->fix;

  // What stays broken is said. -p narrows the work to some probes; what is wrong with others is
  // not asked.
  if (fixed->from == NotesFrom::file && request.patterns.empty()) {
    refuse_the_rest(fix, file, fixed->probes, *choice);
  }

  // Counters on pages that are mapped twice get pages of their own; what stays dead is said.
  if (auto done = repair_counters(fix, file, request, *choice); !done) {
    return tl::unexpected(done.error());
  }

  // The index says again what the notes say.
  auto index = renew_index(fix.plan, file);
  if (!index) return tl::unexpected(index.error());
  fixed->index = std::move(*index);
  if (fixed->index.fate != IndexFate::none) fix.changed_sections.emplace_back(kIndexSection);

  // The build-id comes last: it is a hash of all the other bytes.
  if (request.new_build_id && (!fix.plan.empty() || !file.build_id_range())) {
    if (auto renewed = renew_build_id(fix.plan, file); !renewed) {
      return tl::unexpected(renewed.error());
    }
    fix.changed_sections.emplace_back(kBuildIdSection);
    fixed->new_build_id = id_after(file, fix.plan);
  }
  return fixed;
}

}  // namespace reprobe
