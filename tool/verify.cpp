// reprobe verify: proves that AFTER is BEFORE with only its probe notes rewritten.

#include <fmt/format.h>

#include <optional>

#include "tool/check.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/json.hpp"
#include "tool/link_inputs.hpp"
#include "tool/options.hpp"

namespace reprobe {
namespace {

void print_text(const std::vector<Finding>& findings, const Terminal& terminal) {
  for (const Finding& finding : findings) {
    std::string about;
    if (!finding.name.empty()) about = fmt::format("{}:{}: ", finding.provider, finding.name);
    fmt::print("{}: {}{}\n", terminal.out(Style::red, finding.rule), printable(about),
               printable(finding.message));
    for (const std::string& evidence : finding.evidence) {
      fmt::print("    evidence: {}\n", printable(evidence));
    }
  }
  if (findings.empty())
    fmt::print("verified: each difference is one that reprobe makes, and is proven\n");
}

}  // namespace

int run_verify(const VerifyOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  const auto fail_with = [&](const std::string& path, const Error& error) {
    terminal.error(path, error);
    return exit_code(error.code);
  };
  auto source = map_input(options.before);
  if (!source) return fail_with(options.before, source.error());
  const auto before = open_elf(std::move(*source));
  if (!before) return fail_with(options.before, before.error());
  std::optional<ElfFile> debug;
  if (!options.from_debug.empty()) {
    auto notes = map_input(options.from_debug);
    auto file = notes ? open_elf(std::move(*notes)) : tl::unexpected(notes.error());
    if (!file) return fail_with(options.from_debug, file.error());
    debug = std::move(*file);
  }
  const auto objects = read_link_objects(options.objects);
  if (!objects) return fail_with("--objects", objects.error());
  std::vector<std::string> changed;
  if (options.new_build_id) changed.emplace_back(".note.gnu.build-id");
  const CheckOptions check{.options = {.command = options.command,
                                       .allow_removed_ambiguous = options.removed_ambiguous,
                                       .allow_new_build_id = options.new_build_id,
                                       .notes_from = debug ? &*debug : nullptr,
                                       .allow_respelled = options.respelled,
                                       .allow_site_symbols = options.named_sites,
                                       .objects = &*objects},
                           .second_opinion = options.second_opinion,
                           .changed_sections = std::move(changed),
                           .ignored_payload = options.ignored_payload};
  auto findings = find_differences(*before, options.before, options.after, check, terminal);
  if (!findings) return fail_with(options.after, findings.error());
  // -p narrows findings about probes; those about the file stay.
  std::erase_if(*findings, [&](const Finding& finding) {
    Note note;
    note.provider = finding.provider;
    note.name = finding.name;
    return !finding.name.empty() && !selected(options.common.patterns, note);
  });
  if (options.common.json) {
    Json list = Json::array();
    for (const Finding& finding : *findings) list.push_back(finding_json(finding));
    print_json({{"schema", "reprobe.verify/1"},
                {"before", options.before},
                {"after", options.after},
                {"findings", std::move(list)}});
  } else {
    print_text(*findings, terminal);
  }
  return findings->empty() ? kDone : kFindings;
}

}  // namespace reprobe
