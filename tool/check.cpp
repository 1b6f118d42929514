#include "tool/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/elf/site_group.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/verify/compare_guards.hpp"
#include "libprobe/verify/compare_payload.hpp"
#include "libprobe/verify/compare_upgrade.hpp"
#include "libprobe/verify/second_opinion.hpp"
#include "libprobe/verify/section_match.hpp"
#include "tool/elf_input.hpp"

namespace reprobe {
namespace {

void ask_second_opinion(const std::filesystem::path& before, const std::filesystem::path& after,
                        const ExpectedChanges& expected, const CheckOptions& check,
                        const Terminal& terminal, std::vector<Finding>& findings) {
  const SecondOpinion opinion = second_opinion(before, after, expected);
  switch (opinion.state) {
    case SecondOpinion::State::agrees:
      return terminal.detail("second opinion: LIEF reads input and output alike");
    case SecondOpinion::State::unavailable: {
      const std::string text = fmt::format("second opinion unavailable: {}", opinion.detail);
      return check.second_opinion == SecondOpinionMode::always ? terminal.warning(text)
                                                               : terminal.detail(text);
    }
    case SecondOpinion::State::differs:
      break;
  }
  for (const std::string& difference : opinion.differences) {
    Finding finding;
    finding.rule = "verify-second-opinion";
    finding.severity = Severity::error;
    finding.message = "LIEF reads a difference: " + difference;
    findings.push_back(std::move(finding));
  }
}

// What compare() has followed instruction by instruction and function by function, which LIEF
// cannot.
void add_code(const ElfFile& file, std::vector<std::string>& names) {
  for (const Section& section : file.sections()) {
    if (section.executable() || section.name == ".eh_frame_hdr") names.push_back(section.name);
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

// Guards may preset them.
void add_counters(const ElfFile& file, std::vector<std::string>& names) {
  for (const Probe& probe : read_probes(file).probes) {
    const Section* counters = file.section_containing(probe.semaphore);
    if (probe.semaphore.value != 0 && counters != nullptr) names.push_back(counters->name);
  }
}

}  // namespace

Result<std::vector<Finding>> find_differences(const ElfFile& whole_before,
                                              const std::filesystem::path& before_path,
                                              const std::filesystem::path& after,
                                              const CheckOptions& check, const Terminal& terminal) {
  auto source = map_input(after.string());
  if (!source) return tl::unexpected(source.error());
  const std::uint64_t size = (*source)->size();
  const auto whole_after = open_elf(std::move(*source));
  if (!whole_after) return tl::unexpected(whole_after.error());
  PayloadComparison payload = compare_payload(whole_before, *whole_after, check.ignored_payload);
  const ElfFile& before = payload.before ? *payload.before : whole_before;
  const ElfFile* result = payload.after ? &*payload.after : &*whole_after;
  Comparison compared = compare_as(before, *result, check.options);
  std::vector<Finding>& findings = compared.findings;
  std::ranges::move(payload.findings, std::back_inserter(findings));
  if (findings.empty()) {
    terminal.detail(fmt::format("proven to be what {} makes", to_string(compared.command)));
  }
  const bool small =
      before.source().size() <= kSecondOpinionLimit.value && size <= kSecondOpinionLimit.value;
  // In a damaged file other readers stop early, each somewhere else.
  const bool sound = before.problems().empty();
  if (check.options.notes_from == nullptr && is_upgraded(before, *result)) {
    const char* text =
        "second opinion not asked: relocations that are gone are compared one by one";
    if (check.second_opinion == SecondOpinionMode::always) {
      terminal.warning(text);
    } else {
      terminal.detail(text);
    }
    return std::move(findings);
  }
  if (check.second_opinion == SecondOpinionMode::always ||
      (check.second_opinion == SecondOpinionMode::automatic && small && sound)) {
    const RewriteCommand command = compared.command;
    const bool undo = command == RewriteCommand::undo;
    const bool guards = command == RewriteCommand::guards_site ||
                        command == RewriteCommand::guards_on || (undo && has_guards(before));
    const bool code = guards || undo || command == RewriteCommand::sled;
    // What moved among the headers is known from both files; compare() has judged it.
    ExpectedChanges expected{.sections = changed_sections(before, *result),
                             .more_room = code || command == RewriteCommand::relativize};
    expected.sections.insert(expected.sections.end(), check.changed_sections.begin(),
                             check.changed_sections.end());
    // Symbols follow what made room; each is compared.
    if (expected.more_room) expected.sections.emplace_back(".symtab");
    if (gained_site_symbols(before, *result)) {
      for (const ElfFile* file : {&before, result}) add_site_symbols(*file, expected.symbols);
    }
    if (code) add_code(before, expected.sections);
    if (guards) add_counters(before, expected.sections);
    ask_second_opinion(before_path, after, expected, check, terminal, findings);
  } else {
    terminal.detail(
        fmt::format("second opinion not asked: {}", check.second_opinion == SecondOpinionMode::never
                                                        ? "--second-opinion=never"
                                                    : sound ? "the file is larger than 16 MiB"
                                                            : "the file is damaged"));
  }
  return std::move(findings);
}

Result<void> check_result(const ElfFile& before, const std::filesystem::path& before_path,
                          const std::filesystem::path& after, const CheckOptions& check,
                          const Terminal& terminal) {
  const auto findings = find_differences(before, before_path, after, check, terminal);
  if (!findings) return tl::unexpected(findings.error());
  if (findings->empty()) return {};
  return fail(ErrorCode::internal, "",
              fmt::format("the result did not survive its check, nothing was written: {}: {}",
                          findings->front().rule, findings->front().message),
              "please report this with the file");
}

}  // namespace reprobe
