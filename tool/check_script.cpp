#include "tool/check_script.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/tracers/consumers.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/inputs.hpp"
#include "tool/json.hpp"
#include "tool/tracer_script.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

// A site, as far as a script can ask for it.
struct CheckedProbe {
  std::string provider;
  std::string name;
  bool dangling{};
  std::vector<Argument> arguments;
  std::optional<ConsumerFailure> failure;  // the tracer's first
};

struct CheckedFile {
  std::string path;
  fs::path real;
  unsigned word{};  // bytes of a pointer
  std::vector<CheckedProbe> probes;
};

struct ScriptFinding {
  const char* rule;
  Severity severity;
  std::size_t line;
  std::string probe;  // as the script has it
  std::string message;
};

bool is_pattern(const std::string& text) { return text.find('*') != std::string::npos; }

bool fits(const std::string& pattern, const std::string& text) {
  return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

std::string full_name(const CheckedProbe& probe) {
  return fmt::format("{}:{}", probe.provider, probe.name);
}

fs::path real_path(const fs::path& path) {
  std::error_code failure;
  fs::path real = fs::weakly_canonical(path, failure);
  return failure ? path : real;
}

// Levenshtein's, for names that are alike.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// "a, b, c and 4 more".
std::string some_of(const std::set<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  std::size_t shown = 0;
  for (const std::string& name : names) {
    if (shown == kShown) return fmt::format("{} and {} more", text, names.size() - kShown);
    text += (shown++ == 0 ? "" : ", ") + name;
  }
  return text;
}

class ScriptCheck {
 public:
  explicit ScriptCheck(const CheckScriptOptions& options)
      : options_(options),
        terminal_(options.common.color, options.common.quiet, options.common.verbose) {}

  int run() {
    const auto clauses = read_script();
    if (!clauses) {
      terminal_.error(options_.script, clauses.error());
      return exit_code(clauses.error().code);
    }
    read_files();
    if (exit_ != kDone) return exit_;
    for (const ScriptClause& clause : *clauses) {
      for (const ScriptProbe& probe : clause.probes) check(clause, probe);
    }
    if (asked_ == 0) terminal_.warning(options_.script + ": the script asks for no USDT probe");
    options_.common.json ? print_document() : print_text();
    return findings_.empty() ? kDone : kFindings;
  }

 private:
  Result<std::vector<ScriptClause>> read_script() const {
    const auto source = map_file(options_.script);
    if (!source) return tl::unexpected(source.error());
    const auto text = (*source)->slice(FileOffset{0}, Size{(*source)->size()}, "the script");
    if (!text) return tl::unexpected(text.error());
    return read_tracer_script(as_text(*text));
  }

  void read_files() {
    InputHandlers handlers;
    handlers.on_visit = [](const std::string&) {};
    handlers.on_error = [&](const std::string& path, const Error& error) {
      terminal_.error(path, error);
      exit_ = std::max(exit_, exit_code(error.code));
    };
    handlers.on_elf = [&](const std::string& path, std::shared_ptr<const ByteSource> source) {
      const auto file = open_elf(std::move(source));
      if (!file) return handlers.on_error(path, file.error());
      read_file(path, *file);
    };
    for (const std::string& path : options_.files) for_each_elf(path, true, handlers);
  }

  void read_file(const std::string& path, const ElfFile& file) {
    const ProbeFile read = read_probes(file);
    CheckedFile checked{path, real_path(path), file.header().word(), {}};
    for (const Probe& probe : read.probes) {
      checked.probes.push_back({probe.note.provider,
                                probe.note.name,
                                probe.verdict == Verdict::dangling,
                                probe.arguments,
                                {}});
    }
    const std::vector<std::string> tracers{options_.tracer};
    for (const ConsumerVerdict& verdict : consumer_verdicts(file, read, tracers)) {
      for (const ConsumerFailure& failure : verdict.failures) {
        auto& first = checked.probes[failure.probe].failure;
        if (!first) first = failure;
      }
    }
    files_.push_back(std::move(checked));
  }

  // The files that the script's path means: the same file, else those that are called so.
  [[nodiscard]] std::vector<const CheckedFile*> files_of(const ScriptProbe& probe) const {
    std::vector<const CheckedFile*> found;
    const auto take = [&](auto&& wanted) {
      for (const CheckedFile& file : files_) {
        if (wanted(file)) found.push_back(&file);
      }
    };
    const fs::path path = probe.path;
    if (probe.path.empty() || probe.path == "*") {
      take([](const CheckedFile&) { return true; });
    } else if (is_pattern(probe.path)) {
      const std::string pattern = rooted(path).string();
      take([&](const CheckedFile& file) {
        return fits(probe.path, file.path) || fits(pattern, file.real.string());
      });
    } else {
      const fs::path real = real_path(rooted(path));
      take([&](const CheckedFile& file) { return file.real == real; });
      if (found.empty()) {
        take([&](const CheckedFile& file) {
          return fs::path(file.path).filename() == path.filename();
        });
      }
    }
    return found;
  }

  [[nodiscard]] fs::path rooted(const fs::path& path) const {
    if (options_.root.empty() || !path.is_absolute()) return path;
    return fs::path(options_.root) / path.relative_path();
  }

  void check(const ScriptClause& clause, const ScriptProbe& asked) {
    ++asked_;
    const auto files = files_of(asked);
    if (files.empty()) {
      return add(asked, "no-such-file", Severity::error,
                 fmt::format("no file was given for the path {}", asked.path));
    }
    std::size_t matches = 0;
    for (const CheckedFile* file : files) {
      for (const CheckedProbe& probe : file->probes) {
        if (!fits(asked.provider, probe.provider) || !fits(asked.name, probe.name)) continue;
        if (probe.dangling) continue;
        ++matches;
        check_site(clause, asked, *file, probe);
      }
    }
    if (matches == 0) add_missing(asked, files);
    matches_ += matches;
    flush(asked);
  }

  void check_site(const ScriptClause& clause, const ScriptProbe& asked, const CheckedFile& file,
                  const CheckedProbe& probe) {
    const std::string where = fmt::format("{} ({})", full_name(probe), file.path);
    const auto& failure = probe.failure;
    if (failure && failure->what != Step::argument) {
      about_[{asked.line, "not-traced",
              fmt::format("{}: {}", options_.tracer, reason_text(failure->reason))}]
          .insert(where);
    }
    for (const ScriptArgument& argument : clause.arguments) {
      if (argument.index >= probe.arguments.size()) {
        about_[{argument.line, "no-such-argument",
                fmt::format("arg{} is asked for; the probe has {} argument{}", argument.index,
                            probe.arguments.size(), probe.arguments.size() == 1 ? "" : "s")}]
            .insert(where);
        continue;
      }
      if (failure && failure->what == Step::argument &&
          (failure->argument == 0 || failure->argument == argument.index + 1)) {
        about_[{argument.line, "argument-unreadable",
                fmt::format("{} cannot read arg{}: {}", options_.tracer, argument.index,
                            reason_text(failure->reason))}]
            .insert(where);
      }
      const auto size = probe.arguments[argument.index].size;
      if (argument.as_string && size && static_cast<unsigned>(std::abs(*size)) != file.word) {
        about_[{argument.line, "string-of-number",
                fmt::format("str(arg{}): the argument has {} bytes, a pointer has {}",
                            argument.index, std::abs(*size), file.word)}]
            .insert(where);
      }
    }
  }

  // One finding for all sites that have the same fault.
  void flush(const ScriptProbe& asked) {
    for (const auto& [fault, places] : about_) {
      const auto& [line, rule, message] = fault;
      const bool warn = std::string_view(rule) == "string-of-number";
      findings_.push_back({rule, warn ? Severity::warning : Severity::error, line, asked.text,
                           fmt::format("{}: {}", message, some_of(places))});
    }
    about_.clear();
  }

  void add(const ScriptProbe& asked, const char* rule, Severity severity, std::string message) {
    findings_.push_back({rule, severity, asked.line, asked.text, std::move(message)});
  }

  void add_missing(const ScriptProbe& asked, const std::vector<const CheckedFile*>& files) {
    std::set<std::string> alike;
    std::set<std::string> paths;
    const std::string wanted = asked.provider + ":" + asked.name;
    for (const CheckedFile* file : files) {
      paths.insert(file->path);
      for (const CheckedProbe& probe : file->probes) {
        if (probe.dangling && fits(asked.provider, probe.provider) &&
            fits(asked.name, probe.name)) {
          alike.insert(full_name(probe) + ", whose code is not in the file");
        } else if (!is_pattern(wanted) &&
                   (probe.name == asked.name || edit_distance(full_name(probe), wanted) <= 2)) {
          alike.insert(full_name(probe));
        }
      }
    }
    add(asked, "no-such-probe", Severity::error,
        fmt::format("{} {} no such probe{}", some_of(paths), paths.size() == 1 ? "has" : "have",
                    alike.empty() ? "" : "; there is " + some_of(alike)));
  }

  void print_text() const {
    std::size_t errors = 0;
    for (const ScriptFinding& finding : findings_) {
      const bool is_error = finding.severity == Severity::error;
      errors += is_error ? 1 : 0;
      fmt::print("{}:{}: {} {} {}\n      {}\n",
                 terminal_.out(Style::bold, printable(options_.script)), finding.line,
                 terminal_.out(is_error ? Style::red : Style::yellow, to_string(finding.severity)),
                 finding.rule, printable(finding.probe), printable(finding.message));
    }
    const std::size_t warnings = findings_.size() - errors;
    fmt::print("{} attach point{}, {} site{} in {} file{}: {} error{}, {} warning{}\n", asked_,
               asked_ == 1 ? "" : "s", matches_, matches_ == 1 ? "" : "s", files_.size(),
               files_.size() == 1 ? "" : "s", errors, errors == 1 ? "" : "s", warnings,
               warnings == 1 ? "" : "s");
  }

  void print_document() const {
    Json findings = Json::array();
    for (const ScriptFinding& finding : findings_) {
      findings.push_back({{"rule", finding.rule},
                          {"severity", to_string(finding.severity)},
                          {"line", finding.line},
                          {"probe", finding.probe},
                          {"message", finding.message}});
    }
    print_json({{"schema", "reprobe.check/1"},
                {"script", options_.script},
                {"consumer", options_.tracer},
                {"attach_points", asked_},
                {"sites", matches_},
                {"findings", std::move(findings)}});
  }

  struct Fault {
    std::size_t line;
    const char* rule;
    std::string message;
    auto operator<=>(const Fault& other) const {
      return std::tie(line, message) <=> std::tie(other.line, other.message);
    }
  };

  const CheckScriptOptions& options_;
  Terminal terminal_;
  std::vector<CheckedFile> files_;
  std::map<Fault, std::set<std::string>> about_;  // of one attach point: fault -> sites
  std::vector<ScriptFinding> findings_;
  std::size_t asked_{};
  std::size_t matches_{};
  int exit_{kDone};
};

}  // namespace

int run_check_script(const CheckScriptOptions& options) { return ScriptCheck(options).run(); }

}  // namespace reprobe
