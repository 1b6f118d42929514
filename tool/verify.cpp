// reprobe verify: proves that AFTER is BEFORE with only its probe notes rewritten.

#include <fmt/format.h>

#include <optional>

#include "libprobe/probes/select.hpp"
#include "tool/link_inputs.hpp"
#include "tool/write.hpp"

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
  std::optional<ElfFile> debug;
  if (!options.from_debug.empty()) {
    auto file = open_elf(options.from_debug);
    if (!file) return fail_with(options.from_debug, file.error());
    debug = std::move(*file);
  }
  const auto objects = read_link_objects(options.objects);
  if (!objects) return fail_with("--objects", objects.error());
  VerifyRequest request{.proof = {.options = {.command = options.command,
                                              .allow_removed_ambiguous = options.removed_ambiguous,
                                              .allow_new_build_id = options.new_build_id,
                                              .notes_from = debug ? &*debug : nullptr,
                                              .allow_respelled = options.respelled,
                                              .allow_site_symbols = options.named_sites,
                                              .objects = &*objects}},
                        .ignored_payload = options.payload == PayloadMode::ignore,
                        .second_opinion = options.second_opinion};
  if (options.new_build_id) request.proof.changed_sections = {".note.gnu.build-id"};
  // Which of the two files an error is about, it says with its path.
  if (const auto before = open_elf(options.before); !before) {
    return fail_with(options.before, before.error());
  }
  auto verdicts = verify(options.before, options.after, request);
  if (!verdicts) return fail_with(options.after, verdicts.error());
  say_remarks(verdicts->remarks, terminal);
  std::vector<Finding>& findings = verdicts->findings;
  // -p narrows findings about probes; those about the file stay.
  std::erase_if(findings, [&](const Finding& finding) {
    return !finding.name.empty() &&
           !selected(options.common.patterns, finding.provider, finding.name);
  });
  if (options.common.json) {
    Json list = Json::array();
    for (const Finding& finding : findings) list.push_back(finding_json(finding));
    print_json({{"schema", "reprobe.verify/1"},
                {"before", options.before},
                {"after", options.after},
                {"findings", std::move(list)}});
  } else {
    print_text(findings, terminal);
  }
  return findings.empty() ? kDone : kFindings;
}

}  // namespace reprobe
