// reprobe audit: what is broken in the probes of files, folders and archives.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <variant>

#include "libprobe/probes/select.hpp"
#include "reprobe/reprobe.hpp"
#include "tool/consumers_view.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/inputs.hpp"
#include "tool/json.hpp"
#include "tool/link_inputs.hpp"
#include "tool/options.hpp"
#include "tool/ordered_work.hpp"
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

// What a thread found, for the one that counts and prints.
struct Visited {};
struct Judged {
  ElfFile file;  // the report looks into it
  AuditReport report;
};
struct Seen {
  std::string path;
  std::size_t argument{};
  std::variant<Visited, Error, Judged> what;
};

class Audit {
 public:
  explicit Audit(const AuditOptions& options)
      : options_(options),
        terminal_(options.common.color, options.common.quiet, options.common.verbose),
        text_(!options.common.json && !options.sarif && !options.json_lines),
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
    audit_paths();
    if (!options_.pid.empty()) for_each_process_elf(options_.pid, handlers_of(0, take_));
    terminal_.progress("");
    print_results();
    warn_of_nothing();
    if (exit_ != kDone) return exit_;
    if (nothing_fits()) return kFindings;
    const std::size_t warnings = options_.only_errors ? 0 : summary_.warnings;
    return summary_.errors + warnings == 0 ? kDone : kFindings;
  }

 private:
  using Take = std::function<void(Seen)>;

  // The part that threads do: it touches nothing of this but the request.
  InputHandlers handlers_of(std::size_t argument, const Take& take) const {
    InputHandlers handlers;
    handlers.walk = options_.walk;
    handlers.on_visit = [=](const std::string& path) { take({path, argument, Visited{}}); };
    handlers.on_error = [=](const std::string& path, const Error& error) {
      take({path, argument, error});
    };
    handlers.on_elf = [=, this](const std::string& path, std::shared_ptr<const ByteSource> source) {
      auto file = open_elf(std::move(source));
      if (!file) return take({path, argument, file.error()});
      auto report = reprobe::audit(*file, request_);
      if (!report) return take({path, argument, report.error()});
      take({path, argument, Judged{std::move(*file), std::move(*report)}});
    };
    return handlers;
  }

  void audit_paths() {
    // Folders that cannot be read have their place among the files.
    using Item = std::variant<InputFile, Seen>;
    std::deque<Item> items;
    for_each_file(
        options_.paths, true, options_.walk,
        [&](InputFile file) { items.emplace_back(std::move(file)); },
        [&](const std::string& path, const Error& error) { items.emplace_back(Seen{path, 0, error}); });
    with_elf_.resize(options_.paths.size());
    OrderedWork<Item, Seen>::run(
        options_.jobs,
        [&]() -> std::optional<Item> {
          if (items.empty()) return std::nullopt;
          Item item = std::move(items.front());
          items.pop_front();
          return item;
        },
        [&](const Item& item, const Take& take) {
          if (const auto* file = std::get_if<InputFile>(&item)) {
            for_each_elf_of(*file, handlers_of(file->argument, take));
          } else {
            take(std::get<Seen>(item));
          }
        },
        take_);
  }

  // The part that keeps the order.
  void take(Seen seen) {
    if (std::holds_alternative<Visited>(seen.what)) {
      ++summary_.files;
      return terminal_.progress(
          fmt::format("{} files, {} with probes: ", summary_.files, summary_.with_probes),
          seen.path);
    }
    if (const auto* error = std::get_if<Error>(&seen.what)) return on_error(seen.path, *error);
    if (seen.argument < with_elf_.size()) with_elf_[seen.argument] = true;
    on_elf(seen.path, std::get<Judged>(seen.what));
  }

  void on_error(const std::string& path, const Error& error) {
    terminal_.error(path, error);
    ++summary_.unreadable;
    exit_ = std::max(exit_, exit_code(error.code));
    if (options_.json_lines) {
      print_json_line({{"schema", "reprobe.audit-file/1"},
                       {"path", path},
                       {"error", {{"code", name_of(error.code)}, {"message", error.message}}}});
    }
  }

  bool nothing_fits() const {
    const auto& patterns = options_.common.patterns;
    return !patterns.empty() && summary_.with_probes != 0 && fitting_ == 0;
  }

  void warn_of_nothing() const {
    for (std::size_t i = 0; i < with_elf_.size(); ++i) {
      if (!with_elf_[i] && summary_.unreadable == 0)
        terminal_.warning(options_.paths[i] + ": holds no ELF file");
    }
    if (nothing_fits()) terminal_.warning(no_probe_fits(options_.common.patterns));
  }

  void on_elf(const std::string& path, Judged& judged) {
    ++summary_.elf;
    AuditReport* report = &judged.report;
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
    for (const auto* list : {&probes.probes, &legacy.file.probes}) {
      fitting_ += static_cast<std::size_t>(std::ranges::count_if(*list, [&](const Probe& probe) {
        return selected(options_.common.patterns, probe.note);
      }));
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
    } else if (options_.json_lines) {
      const std::size_t all = probes.probes.size() + legacy.file.probes.size();
      if (all == 0 && result.findings.empty()) return;
      Json line = {{"schema", "reprobe.audit-file/1"}};
      line.update(file_json_of(result, consumers_json(verdicts, probes)));
      line["probes"] = all;
      print_json_line(line);
    } else if (!result.findings.empty() || !verdicts.empty()) {
      if (options_.common.json) consumers_.push_back(consumers_json(verdicts, probes));
      files_.push_back(std::move(result));
    }
  }

  static Json file_json_of(const FileFindings& file, const Json& consumers) {
    Json findings = Json::array();
    for (const Finding& finding : file.findings) findings.push_back(finding_json(finding));
    Json json = {{"path", file.path}, {"findings", std::move(findings)}};
    if (!consumers.empty()) json["consumers"] = consumers;
    return json;
  }

  void print_results() const {
    if (options_.json_lines) return;
    if (text_) return print_summary(summary_);
    if (options_.sarif) return print_json(sarif_document(files_));
    Json files = Json::array();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      files.push_back(file_json_of(files_[i], consumers_[i]));
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
  Take take_{[this](Seen seen) { take(std::move(seen)); }};
  Summary summary_;
  std::size_t fitting_{};        // probes that -p picks
  std::vector<bool> with_elf_;  // by path: an ELF file was found
  std::vector<FileFindings> files_;
  std::vector<Json> consumers_;  // with --json: one for each of files_
  int exit_{kDone};
};

}  // namespace

int run_audit(const AuditOptions& options) { return Audit(options).run(); }

}  // namespace reprobe
