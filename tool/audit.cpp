// reprobe audit: what is broken in the probes of files, folders and archives.

#include <fmt/format.h>

#include <algorithm>

#include "reprobe/reprobe.hpp"
#include "tool/consumers_view.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/inputs.hpp"
#include "tool/json.hpp"
#include "tool/link_inputs.hpp"
#include "tool/options.hpp"
#include "tool/process_inputs.hpp"
#include "tool/sarif.hpp"

namespace reprobe {
namespace {

struct Summary {
  std::size_t files{};  // regular files looked at
  std::size_t elf{};
  std::size_t with_probes{};
  std::size_t probes{};
  std::size_t unknown{};  // of these, the probes whose code is not there to be judged
  std::size_t errors{};
  std::size_t warnings{};
  std::size_t unreadable{};
};

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void print_finding(const Finding& finding, const Terminal& terminal) {
  const Style style = finding.severity == Severity::error     ? Style::red
                      : finding.severity == Severity::warning ? Style::yellow
                                                              : Style::cyan;
  std::string line = fmt::format("  {} {}", terminal.out(style, to_string(finding.severity)),
                                 terminal.out(Style::bold, finding.rule));
  if (!finding.name.empty() || !finding.provider.empty()) {
    line += printable(fmt::format(" {}:{}", finding.provider, finding.name));
  }
  if (finding.site) line += fmt::format(" site {:#x}", *finding.site);
  if (finding.note_offset) line += fmt::format(" note {:#x}", *finding.note_offset);
  fmt::print("{}\n      {}\n", line, printable(finding.message));
  for (const std::string& evidence : finding.evidence) {
    fmt::print("      evidence: {}\n", printable(evidence));
  }
  if (!finding.hint.empty()) fmt::print("      hint: {}\n", printable(finding.hint));
}

void print_file(const FileFindings& file, std::size_t probes, const Terminal& terminal) {
  fmt::print("{}: {}, {}\n", terminal.out(Style::bold, printable(file.path)),
             plural(file.findings.size(), "finding"), plural(probes, "probe"));
  for (const Finding& finding : file.findings) print_finding(finding, terminal);
}

void count(const std::vector<Finding>& findings, Summary& summary) {
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::error) ++summary.errors;
    if (finding.severity == Severity::warning) ++summary.warnings;
  }
}

void print_summary(const Summary& s) {
  fmt::print("{} in {} of {}: {}, {}{}{}\n", plural(s.probes, "probe"), s.with_probes,
             plural(s.elf, "ELF file"), plural(s.errors, "error"), plural(s.warnings, "warning"),
             s.unknown == 0 ? "" : fmt::format(", {} unknown", plural(s.unknown, "probe")),
             s.unreadable == 0 ? "" : fmt::format(", {} unreadable", s.unreadable));
}

Json summary_json(const Summary& s) {
  return {{"files", s.files},
          {"elf", s.elf},
          {"with_probes", s.with_probes},
          {"probes", s.probes},
          {"unknown", s.unknown},
          {"errors", s.errors},
          {"warnings", s.warnings},
          {"unreadable", s.unreadable}};
}

class Audit {
 public:
  explicit Audit(const AuditOptions& options)
      : options_(options),
        terminal_(options.common.color, options.common.quiet, options.common.verbose),
        text_(!options.common.json && !options.sarif),
        request_{.patterns = options.common.patterns,
                 .kernels = parse_kernel(options.kernel),
                 .objects = &objects_,
                 .with_consumers = !options.sarif,
                 .consumers = options.consumers} {}

  int run() {
    auto objects = read_link_objects(options_.objects);
    if (!objects) {
      terminal_.error("--objects", objects.error());
      return exit_code(objects.error().code);
    }
    objects_ = std::move(*objects);
    InputHandlers handlers;
    handlers.on_visit = [&](const std::string& path) {
      ++summary_.files;
      terminal_.progress(
          fmt::format("{} files, {} with probes: {}", summary_.files, summary_.with_probes, path));
    };
    handlers.on_error = [&](const std::string& path, const Error& error) { on_error(path, error); };
    handlers.on_elf = [&](const std::string& path, std::shared_ptr<const ByteSource> source) {
      on_elf(path, std::move(source));
    };
    for (const std::string& path : options_.paths) for_each_elf(path, true, handlers);
    if (!options_.pid.empty()) for_each_process_elf(options_.pid, handlers);
    terminal_.progress("");
    print_results();
    if (exit_ != kDone) return exit_;
    const std::size_t warnings = options_.only_errors ? 0 : summary_.warnings;
    return summary_.errors + warnings == 0 ? kDone : kFindings;
  }

 private:
  void on_error(const std::string& path, const Error& error) {
    terminal_.error(path, error);
    ++summary_.unreadable;
    exit_ = std::max(exit_, exit_code(error.code));
  }

  void on_elf(const std::string& path, std::shared_ptr<const ByteSource> source) {
    const auto file = open_elf(std::move(source));
    if (!file) return on_error(path, file.error());
    ++summary_.elf;
    auto report = reprobe::audit(*file, request_);
    if (!report) return on_error(path, report.error());
    const ProbeFile& probes = report->notes;
    const LegacyProbes& legacy = report->legacy;
    FileFindings result{path, std::move(report->findings)};
    // No file has both: one list or the other is empty.
    if (!probes.probes.empty() || !legacy.file.probes.empty()) ++summary_.with_probes;
    summary_.probes += probes.probes.size() + legacy.file.probes.size();
    for (const auto* list : {&probes.probes, &legacy.file.probes}) {
      summary_.unknown +=
          static_cast<std::size_t>(std::ranges::count(*list, Verdict::unknown, &Probe::verdict));
    }
    count(result.findings, summary_);
    const auto& verdicts = report->consumers;
    if (text_) {
      // What a tracer can do with no file is no news, unless somebody asks for this tracer.
      const bool limits = !options_.consumers.empty();
      const bool news = limits ? any_failure(verdicts) : any_fault(verdicts);
      if (result.findings.empty() && !news) return;
      terminal_.progress("");
      print_file(result, probes.probes.size() + legacy.file.probes.size(), terminal_);
      if (news) print_consumers(verdicts, probes, limits, terminal_);
    } else if (!result.findings.empty() || !verdicts.empty()) {
      if (options_.common.json) consumers_.push_back(consumers_json(verdicts, probes));
      files_.push_back(std::move(result));
    }
  }

  void print_results() const {
    if (text_) return print_summary(summary_);
    if (options_.sarif) return print_json(sarif_document(files_));
    Json files = Json::array();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      Json findings = Json::array();
      for (const Finding& finding : files_[i].findings) findings.push_back(finding_json(finding));
      Json file = {{"path", files_[i].path}, {"findings", std::move(findings)}};
      if (!consumers_[i].empty()) file["consumers"] = consumers_[i];
      files.push_back(std::move(file));
    }
    print_json({{"schema", "reprobe.audit/1"},
                {"files", std::move(files)},
                {"summary", summary_json(summary_)}});
  }

  const AuditOptions& options_;
  Terminal terminal_;
  bool text_;
  LinkObjects objects_;
  AuditRequest request_;
  Summary summary_;
  std::vector<FileFindings> files_;
  std::vector<Json> consumers_;  // with --json: one for each of files_
  int exit_{kDone};
};

}  // namespace

int run_audit(const AuditOptions& options) { return Audit(options).run(); }

}  // namespace reprobe
