#include "libprobe/facade/check.hpp"

#include <algorithm>
#include <iterator>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/site_group.hpp"
#include "libprobe/facade/no_exceptions.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/verify/compare_guards.hpp"
#include "libprobe/verify/compare_payload.hpp"
#include "libprobe/verify/compare_upgrade.hpp"
#include "libprobe/verify/moved_data.hpp"
#include "libprobe/verify/second_opinion.hpp"
#include "libprobe/verify/section_match.hpp"

namespace reprobe {
namespace {

// What compare() has followed instruction by instruction and function by function, which LIEF
// cannot.
void add_code(const ElfFile& file, std::vector<std::string>& names) {
  for (const Section& section : file.sections()) {
    if (section.executable() || section.name == ".eh_frame_hdr") names.push_back(section.name);
  }
}

// Guards may preset them.
void add_counters(const ElfFile& file, std::vector<std::string>& names) {
  for (const Probe& probe : read_probes(file).probes) {
    const Section* counters = file.section_containing(probe.semaphore);
    if (probe.semaphore.value != 0 && counters != nullptr) names.push_back(counters->name);
  }
}

// Those at the sites of probes, which compare() has compared with the notes.
void add_site_symbols(const ElfFile& file, std::vector<std::string>& names) {
  bool has_table = false;
  for (const Section& section : file.sections()) {
    const auto table = section.type == SHT_SYMTAB ? file.symbol_table(section)
                                                  : Result<SymbolTable>(SymbolTable{});
    if (!table) continue;
    has_table = has_table || section.type == SHT_SYMTAB;
    const SymbolGroup group = site_group(*table);
    for (std::uint32_t i = group.begin; i < group.end; ++i) {
      names.emplace_back(table->name(table->at(i)));
    }
  }
  if (!has_table) names.emplace_back();  // a table of their own begins with the null symbol
}

bool gained_site_symbols(const ElfFile& before, const ElfFile& after) {
  return (before.section(kSitesNamed) == nullptr) != (after.section(kSitesNamed) == nullptr);
}

// What moved among the headers is known from both files; compare() has judged it.
ExpectedChanges expected_changes(const ElfFile& before, const ElfFile& after,
                                 RewriteCommand command, const Proof& proof) {
  const bool undo = command == RewriteCommand::undo;
  const bool guards = command == RewriteCommand::guards_site ||
                      command == RewriteCommand::guards_on || (undo && has_guards(before));
  const bool code = guards || undo || command == RewriteCommand::sled;
  ExpectedChanges expected{.sections = changed_sections(before, after),
                           .more_room = code || command == RewriteCommand::relativize};
  const bool fix = command == RewriteCommand::fix;
  if (const auto moved = fix ? put_data_back(before, after) : std::nullopt) {
    expected.moved_data = true;
    expected.sections.insert(expected.sections.end(), moved->sections.begin(),
                             moved->sections.end());
  }
  expected.sections.insert(expected.sections.end(), proof.changed_sections.begin(),
                           proof.changed_sections.end());
  // Symbols follow what made room; each is compared.
  if (expected.more_room) expected.sections.emplace_back(".symtab");
  if (gained_site_symbols(before, after)) {
    for (const ElfFile* file : {&before, &after}) add_site_symbols(*file, expected.symbols);
  }
  if (code) add_code(before, expected.sections);
  if (guards) add_counters(before, expected.sections);
  return expected;
}

// Why LIEF is not asked; "" where it is.
std::string not_asked(const ElfFile& before, const ElfFile& after, const VerifyRequest& request) {
  if (request.second_opinion == SecondOpinionMode::never) return "--second-opinion=never";
  if (request.second_opinion == SecondOpinionMode::always) return "";
  // In a damaged file other readers stop early, each somewhere else.
  if (!before.problems().empty()) return "the file is damaged";
  const bool small = before.source().size() <= kSecondOpinionLimit.value &&
                     after.source().size() <= kSecondOpinionLimit.value;
  return small ? "" : "the file is larger than 16 MiB";
}

void take_opinion(const SecondOpinion& opinion, SecondOpinionMode mode, Verdicts& verdicts) {
  switch (opinion.state) {
    case SecondOpinion::State::agrees:
      verdicts.remarks.push_back({false, "second opinion: LIEF reads input and output alike"});
      return;
    case SecondOpinion::State::unavailable:
      verdicts.remarks.push_back(
          {mode == SecondOpinionMode::always, "second opinion unavailable: " + opinion.detail});
      return;
    case SecondOpinion::State::differs:
      break;
  }
  for (const std::string& difference : opinion.differences) {
    Finding finding;
    finding.rule = "verify-second-opinion";
    finding.severity = Severity::error;
    finding.message = "LIEF reads a difference: " + difference;
    verdicts.findings.push_back(std::move(finding));
  }
}

}  // namespace

Result<Verdicts> check(const ElfFile& whole_before, const std::filesystem::path& before_path,
                       const std::filesystem::path& after_path, const VerifyRequest& request) {
  const auto whole_after = open_elf(after_path);
  if (!whole_after) return tl::unexpected(whole_after.error());
  PayloadComparison payload = compare_payload(whole_before, *whole_after, request.ignored_payload);
  const ElfFile& before = payload.before ? *payload.before : whole_before;
  const ElfFile& after = payload.after ? *payload.after : *whole_after;
  Comparison compared = compare_as(before, after, request.proof.options);
  Verdicts verdicts{compared.command, std::move(compared.findings), {}};
  std::ranges::move(payload.findings, std::back_inserter(verdicts.findings));
  if (verdicts.findings.empty()) {
    verdicts.remarks.push_back(
        {false, "proven to be what " + std::string(to_string(compared.command)) + " makes"});
  }
  const bool upgraded = request.proof.options.notes_from == nullptr && is_upgraded(before, after);
  const std::string why_not = upgraded ? "relocations that are gone are compared one by one"
                                       : not_asked(whole_before, *whole_after, request);
  if (!why_not.empty()) {
    const bool asked = request.second_opinion == SecondOpinionMode::always;
    verdicts.remarks.push_back({asked, "second opinion not asked: " + why_not});
    return verdicts;
  }
  const auto expected = expected_changes(before, after, compared.command, request.proof);
  // What an undo takes away is what the rewrite had added.
  const bool undo = compared.command == RewriteCommand::undo;
  take_opinion(undo ? second_opinion(after_path, before_path, expected)
                    : second_opinion(before_path, after_path, expected),
               request.second_opinion, verdicts);
  return verdicts;
}

Result<Verdicts> verify(const std::filesystem::path& before, const std::filesystem::path& after,
                        const VerifyRequest& request) {
  return without_exceptions([&]() -> Result<Verdicts> {
    if (request.proof.original) return check(*request.proof.original, before, after, request);
    const auto file = open_elf(before);
    if (!file) return tl::unexpected(file.error());
    return check(*file, before, after, request);
  });
}

}  // namespace reprobe
