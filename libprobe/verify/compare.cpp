#include "libprobe/verify/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "libprobe/audit/index_probes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/verify/allowed.hpp"
#include "libprobe/verify/byte_ranges.hpp"
#include "libprobe/verify/check_index.hpp"
#include "libprobe/verify/compare_build_id.hpp"
#include "libprobe/verify/compare_guards.hpp"
#include "libprobe/verify/compare_index.hpp"
#include "libprobe/verify/compare_notes.hpp"
#include "libprobe/verify/compare_probes.hpp"
#include "libprobe/verify/compare_process.hpp"
#include "libprobe/verify/compare_site_symbols.hpp"
#include "libprobe/verify/compare_sleds.hpp"
#include "libprobe/verify/compare_upgrade.hpp"
#include "libprobe/verify/leftovers.hpp"
#include "libprobe/verify/moved_data.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// What a process may see of it: the index, a new build-id, and what the caller has compared.
ProcessClaims claims_of_fix(const ElfFile& before, const CompareOptions& options) {
  ProcessClaims claims;
  if (const auto index = find_index(before)) {
    claims.bytes.push_back({index->offset.value, index->offset.value + index->size.value});
  }
  const auto id = options.allow_new_build_id ? before.build_id_range() : std::nullopt;
  if (id) claims.bytes.push_back({id->first.value, id->first.value + id->second.value});
  if (options.elsewhere != nullptr) {
    claims.relocated = true;
    for (const auto& [offset, size] : options.elsewhere->bytes) {
      claims.bytes.push_back({offset.value, offset.value + size.value});
    }
  }
  return claims;
}

void compare_bytes(const ElfFile& before, const ElfFile& after, const SectionMatch& match,
                   const CompareOptions& options, std::vector<Finding>& out) {
  compare_process(before, after, claims_of_fix(before, options), out);
  auto ranges = allowed_ranges(before, after, match, options.allow_new_build_id);
  if (options.elsewhere != nullptr) {
    for (const auto& [offset, size] : options.elsewhere->bytes) {
      ranges.push_back({offset.value, offset.value + size.value});
    }
    std::ranges::sort(ranges, {}, &Range::begin);
  }
  if (const auto found = first_difference(before, after, ranges)) {
    out.push_back(difference_finding(*found, "outside the notes",
                                     fmt::format("the file ends before {:#x}", found->at)));
  }
}

using OtherNotes = std::vector<std::tuple<std::string_view, std::uint32_t, std::string_view>>;

void add_notes(const NoteScan& scan, OtherNotes& out) {
  for (const ForeignNote& note : scan.foreign) {
    const auto desc = note.descsz == 0
                          ? ByteView{}
                          : note.bytes.subspan(static_cast<std::size_t>(note.desc), note.descsz);
    out.emplace_back(note.owner, note.type, as_text(desc));
  }
}

// Notes of other owners among the probes' and those that were moved to a section of their own.
bool same_other_notes(const ElfFile& before, const ProbeFile& old, const ElfFile& after,
                      const ProbeFile& now) {
  const NoteScan apart_before = scan_foreign_section(before),
                 apart_after = scan_foreign_section(after);
  OtherNotes left, right;
  add_notes(old.scan, left);
  add_notes(apart_before, left);
  add_notes(now.scan, right);
  add_notes(apart_after, right);
  std::ranges::sort(left);
  std::ranges::sort(right);
  return left == right && apart_before.notes.size() == apart_after.notes.size();
}

// Is the section in the one file and not in the other?
bool gained(const ElfFile& before, const ElfFile& after, std::string_view section) {
  return before.section(section) == nullptr && after.section(section) != nullptr;
}

// What the repairs of `fix` make of a file, whatever of them that was.
std::vector<Finding> compare_repairs(const ElfFile& before, const ElfFile& after,
                                     const CompareOptions& options) {
  const bool from_index =
      std::ranges::none_of(before.sections(), holds_notes) && find_index(before).has_value();
  if (options.elsewhere == nullptr && options.notes_from == nullptr && !from_index &&
      is_upgraded(before, after)) {
    return compare_upgrade(before, after, options);
  }
  std::vector<Finding> out;
  const SectionMatch match = match_sections(before, after);
  compare_bytes(before, after, match, options, out);
  compare_sections(before, after, match, options.allow_new_build_id, out);
  compare_symbols(before, after, match, out);
  const ProbeFile now = read_probes(after);
  // Notes that stood in a section of another name stand in .note.stapsdt now.
  const auto others = now.probes.empty() ? std::nullopt : read_other_sections(before);
  const ProbeFile old = others ? *others : read_probes(before, options.objects);
  // Notes that are there already are not brought back.
  if (options.notes_from != nullptr && before.section(kStapsdtSection) == nullptr) {
    compare_restored(read_probes(*options.notes_from), {}, false, now, out);
  } else if (from_index) {
    compare_with_index(before, now, out);
  } else if (options.elsewhere == nullptr) {
    compare_probes(before, old, match, options, now, out);
  }
  check_index(before, after, now, out);
  compare_note_bytes(before, old, after, now, out);
  compare_note_relocations(before, old, after, now, out);
  compare_leftovers(before, after, match, out);
  if (!same_other_notes(before, old, after, now)) {
    out.push_back(verify_finding("verify-bytes", "notes of other owners are lost or new"));
  }
  if (!options.allow_new_build_id) compare_build_id(before, after, out);
  return out;
}

// Counters may have got pages of their own: the move is proven, and all else as if there were none.
std::vector<Finding> compare_moved_repairs(const ElfFile& before, const ElfFile& after,
                                           const CompareOptions& options) {
  const auto moved = put_data_back(before, after);
  if (!moved) return compare_repairs(before, after, options);
  if (!moved->put_back) return moved->findings;
  return compare_repairs(before, *moved->put_back, options);
}

// A new build-id is a hash of all the other bytes.
std::vector<Finding> compare_repairs_and_id(const ElfFile& before, const ElfFile& after,
                                            const CompareOptions& options) {
  auto out = compare_moved_repairs(before, after, options);
  if (options.allow_new_build_id) check_new_build_id(after, out);
  return out;
}

// Symbols at the sites come last, and their record gives back what the repairs made.
std::vector<Finding> compare_fix(const ElfFile& before, const ElfFile& after,
                                 const CompareOptions& options) {
  if (!options.allow_site_symbols || !gained(before, after, kSitesNamed))
    return compare_repairs_and_id(before, after, options);
  const auto repaired = without_site_symbols(after);
  if (!repaired) return {verify_finding("verify-undo", repaired.error().message)};
  auto out = compare_site_symbols(*repaired, after);
  if (same_files(before, *repaired)) return out;
  auto repairs = compare_repairs_and_id(before, *repaired, options);
  std::ranges::move(repairs, std::back_inserter(out));
  return out;
}

std::vector<Finding> no_record(std::string_view section) {
  return {verify_finding("verify-undo", fmt::format("the result has no record {}", section))};
}

// An index that was there already says what the notes say; nothing else is another.
std::vector<Finding> compare_renewed(const ElfFile& before, const ElfFile& after) {
  std::vector<Finding> out;
  const ProcessClaims claims = claims_of_fix(before, {});
  const std::vector<Range>& allowed = claims.bytes;
  if (before.source().size() != after.source().size()) {
    out.push_back(verify_finding("verify-bytes", "the file has another size"));
  }
  if (const auto found = first_difference(before, after, allowed)) {
    out.push_back(difference_finding(*found, "outside the index",
                                     fmt::format("the file ends before {:#x}", found->at)));
  }
  compare_process(before, after, claims, out);
  check_index(before, after, read_probes(after), out);
  return out;
}

// The original is what the forward command makes the input of, and the input's record says so too.
std::vector<Finding> compare_undone(const ElfFile& before, const ElfFile& after) {
  if (gained(after, before, kUndoSection)) return compare_sleds(after, before);
  for (const std::string_view record : {kGuardsAtSite, kGuardsOn}) {
    if (gained(after, before, record)) return compare_guards(after, before);
  }
  if (gained(after, before, kSitesNamed)) return compare_site_symbols(after, before);
  return {verify_finding("verify-undo", "the input has no record that the result lacks")};
}

std::vector<Finding> compare_command(const ElfFile& before, const ElfFile& after,
                                     RewriteCommand command, const CompareOptions& options) {
  const auto guards = [&](std::string_view record) {
    return gained(before, after, record) ? compare_guards(before, after) : no_record(record);
  };
  switch (command) {
    case RewriteCommand::fix:
      return compare_fix(before, after, options);
    case RewriteCommand::sled:
      return gained(before, after, kUndoSection) ? compare_sleds(before, after)
                                                 : no_record(kUndoSection);
    case RewriteCommand::guards_site:
      return guards(kGuardsAtSite);
    case RewriteCommand::guards_on:
      return guards(kGuardsOn);
    case RewriteCommand::relativize:
      return find_index(before) ? compare_renewed(before, after) : compare_index(before, after);
    case RewriteCommand::undo:
      return compare_undone(before, after);
  }
  return {};
}

// The commands that may have made the result, that which it looks most like first. A guess is no
// danger: each proof holds of any two files.
std::vector<RewriteCommand> possible_commands(const ElfFile& before, const ElfFile& after) {
  std::vector<RewriteCommand> commands;
  const auto add = [&](RewriteCommand command, bool possible) {
    if (possible) commands.push_back(command);
  };
  add(RewriteCommand::sled, gained(before, after, kUndoSection));
  add(RewriteCommand::guards_site, gained(before, after, kGuardsAtSite));
  add(RewriteCommand::guards_on, gained(before, after, kGuardsOn));
  constexpr std::array kRecords{kUndoSection, kGuardsAtSite, kGuardsOn, kSitesNamed};
  const auto lost = [&](std::string_view record) { return gained(after, before, record); };
  add(RewriteCommand::undo, std::ranges::any_of(kRecords, lost));
  add(RewriteCommand::relativize, gained_index(before, after));
  commands.push_back(RewriteCommand::fix);
  return commands;
}

}  // namespace

std::string_view to_string(RewriteCommand command) {
  constexpr std::array<std::string_view, kRewriteCommands.size()> kNames{
      "fix", "sled", "guards-site", "guards-on", "relativize", "undo"};
  return kNames[static_cast<std::size_t>(command)];
}

Comparison compare_as(const ElfFile& before, const ElfFile& after, const CompareOptions& options) {
  // Every command may find nothing to do.
  if (same_files(before, after)) return {options.command.value_or(RewriteCommand::fix), {}};
  if (options.command) {
    return {*options.command, compare_command(before, after, *options.command, options)};
  }
  std::optional<Comparison> first;
  for (const RewriteCommand command : possible_commands(before, after)) {
    Comparison found{command, compare_command(before, after, command, options)};
    if (found.findings.empty()) return found;
    if (!first) first = std::move(found);
  }
  return std::move(*first);
}

std::vector<Finding> compare(const ElfFile& before, const ElfFile& after,
                             const CompareOptions& options) {
  return compare_as(before, after, options).findings;
}

}  // namespace reprobe
