// The commands that read files, and the options that every command has.

#include <string>

#include "libprobe/audit/kernels.hpp"
#include "libprobe/tracers/attach_line.hpp"
#include "libprobe/tracers/consumers.hpp"
#include "tool/command_line.hpp"

namespace reprobe {
namespace {

// What is wrong with the text, or "": CLI11's form of a check.
std::string is_pid(const std::string& text) {
  const bool digits = !text.empty() && text.size() < 10 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  return digits || text == "all" ? "" : "expected a process's number or all, found " + text;
}

// --pid, in place of what else is read: one of both must be there.
CLI::Option* add_pid(CLI::App& command, std::string& pid, const char* what, CLI::Option* others,
                     const std::string& name) {
  auto* option =
      command.add_option("--pid", pid, what)->type_name("PID")->excludes(others)->check(is_pid);
  command.callback([others, option, name] {
    if (others->empty() && option->empty()) throw CLI::RequiredError(name + " or --pid");
  });
  return option;
}

}  // namespace

void add_common(CLI::App& command, CommonOptions& common) {
  command.add_flag("--json", common.json, "print one JSON document instead of text")
      ->group(kOutput);
  command
      .add_option("-p,--probe", common.patterns,
                  "only probes whose provider:name fits the glob; repeatable")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command.add_flag("-q,--quiet", common.quiet, "errors only on stderr")->group(kOutput);
  command.add_flag("-v,--verbose", common.verbose, "say on stderr what was decided and why")
      ->group(kOutput);
  add_choice<ColorMode, ColorMode>(
      command, "--color", common.color,
      {{"auto", ColorMode::automatic}, {"always", ColorMode::always}, {"never", ColorMode::never}},
      "WHEN", "auto, always or never; auto: on a terminal, unless NO_COLOR is set")
      ->default_str("auto")
      ->group(kOutput);
}

void add_second_opinion(CLI::App& command, SecondOpinionMode& mode) {
  add_choice<SecondOpinionMode, SecondOpinionMode>(
      command, "--second-opinion", mode,
      {{"auto", SecondOpinionMode::automatic},
       {"always", SecondOpinionMode::always},
       {"never", SecondOpinionMode::never}},
      "WHEN", "let LIEF read input and output too: auto (files up to 16 MiB), always or never")
      ->default_str("auto");
}

CLI::Option* add_payload(CLI::App& command, PayloadMode& mode, bool automatic,
                         const std::string& what) {
  std::vector<std::pair<std::string, PayloadMode>> words{{"keep", PayloadMode::keep},
                                                         {"ignore", PayloadMode::ignore}};
  if (automatic) words.insert(words.begin(), {"auto", PayloadMode::automatic});
  return add_choice(command, "--payload", mode, words, "HOW", what)
      ->default_str(words.front().first);
}

CLI::Option* add_objects(CLI::App& command, std::vector<std::string>& objects) {
  return command
      .add_option("--objects", objects,
                  "the inputs of the link (objects, archives): they prove which notes are live; "
                  "stands behind the other arguments")
      ->type_name("FILE...");
}

void add_list(CLI::App& app, ListOptions& options) {
  CLI::App& command = *app.add_subcommand("list", "print the probes of files");
  command.footer(
      "Examples:\n"
      "  reprobe list app\n"
      "  reprobe list -p 'python:*' --json libpython3.11.so.1.0\n"
      "  reprobe list libfoo.a\n"
      "  reprobe list --deps app              # its libraries too, as ld.so finds them\n"
      "  reprobe list --pid 4242              # which of a process's sites are armed\n"
      "  reprobe list --pid all -p 'python:*'\n"
      "  reprobe list --as perf app           # perf probe -x ... for each probe");
  add_common(command, options.common);
  auto* deps = command.add_flag(
      "--deps", options.deps,
      "also the libraries that FILE needs, directly or not, and its interpreter: those with "
      "probes. LD_LIBRARY_PATH and LD_PRELOAD do not count");
  command.add_option("--root", options.root, "look for them in the system under this folder")
      ->type_name("DIR")
      ->needs(deps)
      ->check(CLI::ExistingDirectory);
  auto* files = command.add_option("FILE", options.files, "ELF files, or archives of them");
  auto* pid = add_pid(command, options.pid,
                      "instead of files, the probes of a running process, or of all: which are "
                      "armed, and their counters",
                      files, "FILE");
  pid->excludes(deps);
  add_objects(command, options.objects)->excludes(pid);
  command
      .add_option("--as", options.as,
                  "instead of the table, the line for each probe that makes a tracer attach")
      ->type_name("TRACER")
      ->excludes(pid)
      ->check(CLI::IsMember(attach_form_names()));
}

void add_audit(CLI::App& app, AuditOptions& options) {
  CLI::App& command =
      *app.add_subcommand("audit", "find broken probes in files, folders, archives");
  command.footer(
      "Exit: 0 nothing wrong, 1 errors or warnings found, 3 a file could not be read.\n"
      "That a tracer fails on a probe is shown, but does not alone make the exit 1: each has\n"
      "limits of its own (LTTng takes no probe with a semaphore, perf reads no constants).\n"
      "\n"
      "Examples:\n"
      "  reprobe audit app\n"
      "  reprobe audit --consumers gdb,bpftrace app\n"
      "  reprobe audit dist/ --sarif > reprobe.sarif\n"
      "  reprobe audit package.deb\n"
      "  reprobe audit image.tar                   # docker save, or an OCI layout\n"
      "  reprobe audit -x -j4 --exclude '*.debug' /");
  add_common(command, options.common);
  auto* sarif =
      command.add_flag("--sarif", options.sarif, "print SARIF 2.1.0, which code hosts show")
          ->excludes("--json")
          ->group(kOutput);
  command
      .add_flag("--json-lines", options.json_lines,
                "print one line of JSON for each file with probes or findings")
      ->excludes("--json")
      ->excludes(sarif)
      ->group(kOutput);
  command.add_flag("-x,--one-file-system", options.walk.one_file_system,
                   "do not walk into folders of other file systems");
  command
      .add_option("--exclude", options.walk.exclude,
                  "pass over files and folders whose name or whole path fits the glob; repeatable")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command.add_flag("--layers", options.walk.layers,
                   "of container images: each layer for itself, not the files that are left");
  command
      .add_option("-j,--jobs", options.jobs,
                  "files that are read at a time; the output is the same")
      ->type_name("N")
      ->check(CLI::Range(1, 256))
      ->default_str("1");
  const auto consumers = consumer_names();
  command
      .add_option("--consumers", options.consumers,
                  "only the verdicts of these tracers; repeatable, or with commas (default: all)")
      ->type_name("NAME")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(std::vector<std::string>(consumers.begin(), consumers.end())));
  command
      .add_option_function<std::string>(
          "--fail-on",
          [&options](const std::string& word) { options.only_errors = word == "error"; },
          "what makes the exit 1: error, or warning, which means both")
      ->type_name("SEVERITY")
      ->check(CLI::IsMember(std::vector<std::string>{"error", "warning"}))
      ->default_str("warning");
  auto* paths = command.add_option("PATH", options.paths, "files, folders (walked) and archives");
  add_pid(command, options.pid, "instead of paths, the files that a running process executes",
          paths, "PATH");
  command
      .add_option(
          "--kernel", options.kernel,
          "judge for this version of Linux alone, as uname -r says it (default: all that are "
          "in use)")
      ->type_name("VERSION")
      ->check([](const std::string& text) {
        return parse_kernel(text) ? std::string() : "no version of Linux: " + text;
      });
  add_objects(command, options.objects);
}

void add_verify(CLI::App& app, VerifyOptions& options) {
  CLI::App& command =
      *app.add_subcommand("verify", "prove that a rewrite changed only what it says");
  command.footer(
      "Exit: 0 proven, 1 a difference that no rewrite of notes makes, 3 unreadable.\n"
      "\n"
      "Examples:\n"
      "  reprobe verify old.so new.so\n"
      "  reprobe verify --command sled app app.sled");
  add_common(command, options.common);
  std::vector<std::pair<std::string, RewriteCommand>> commands;
  for (const RewriteCommand each : kRewriteCommands) commands.emplace_back(to_string(each), each);
  add_choice(command, "--command", options.command, commands, "COMMAND",
             "what the rewrite was; without, what it can have been is tried");
  command.add_option("BEFORE", options.before, "the file before the rewrite")->required();
  command.add_option("AFTER", options.after, "the file after it")->required();
  command.add_flag("--remove-ambiguous", options.removed_ambiguous,
                   "the rewrite was asked to remove ambiguous notes");
  command
      .add_option("--from-debug", options.from_debug,
                  "the rewrite brought back the notes of this debug file")
      ->type_name("DEBUG");
  command.add_flag("--respell", options.respelled, "the rewrite was asked to respell arguments");
  command.add_flag("--symbols", options.named_sites,
                   "the rewrite was asked for symbols at the probes' sites");
  command.add_flag("--new-build-id", options.new_build_id,
                   "the rewrite was asked for a new build-id");
  add_payload(command, options.payload, false,
              "keep, or ignore: the rewrite was asked to leave data behind the ELF file at their "
              "offset");
  add_objects(command, options.objects);
  add_second_opinion(command, options.second_opinion);
}

void add_diff(CLI::App& app, DiffOptions& options) {
  CLI::App& command = *app.add_subcommand("diff", "compare the probes of two files");
  command.footer(
      "Exit: 0 the same probes, 1 differences, 3 a file could not be read.\n"
      "\n"
      "Examples:\n"
      "  reprobe diff libfoo.so.1 libfoo.so.2      # does a script for the old one still work?\n"
      "  reprobe diff -p 'demo:*' --json old.debug new.debug");
  add_common(command, options.common);
  command.add_option("OLD", options.before, "ELF file, or an archive of them")->required();
  command.add_option("NEW", options.after, "what it is compared with")->required();
}

}  // namespace reprobe
