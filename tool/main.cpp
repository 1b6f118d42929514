// The command line: which options there are, and which command runs.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include "libprobe/tracers/consumers.hpp"
#include "tool/exit_code.hpp"
#include "tool/options.hpp"

namespace {

using namespace reprobe;

// A file cut short by another process while it is mapped: the one fault that no check can see
// coming. Nothing has been renamed yet, so ending here loses nothing.
void on_bus_error(int) {
  constexpr std::string_view kText =
      "reprobe: error: a file changed while it was read; try again when nothing writes to it\n";
  if (write(STDERR_FILENO, kText.data(), kText.size()) < 0) _exit(kUnreadable);
  _exit(kUnreadable);
}

// A descriptor that the caller closed would be given to the next file that is opened, and what is
// meant for stdout or stderr would be written into it. In its place one that cannot be written (or
// read): output that is lost is then reported.
void hold_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
      // open() gives the lowest free number: this one.
      if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) _exit(kInternal);
    }
  }
}

// Not by fmt::print(), which throws where stderr cannot be written.
int failed(const std::string& what) {
  std::fputs(("reprobe: error: " + what + "\n").c_str(), stderr);
  return kInternal;
}

int lost_output(int number) {
  return failed("standard output cannot be written: " + std::generic_category().message(number));
}

constexpr const char* kOutput = "Output";  // headings of --help
constexpr const char* kSafety = "What may be lost";

void add_common(CLI::App& command, CommonOptions& common) {
  static const std::map<std::string, ColorMode> kColors{
      {"auto", ColorMode::automatic}, {"always", ColorMode::always}, {"never", ColorMode::never}};
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
  command
      .add_option_function<std::string>(
          "--color", [&common](const std::string& word) { common.color = kColors.at(word); },
          "auto, always or never; auto: on a terminal, unless NO_COLOR is set")
      ->type_name("WHEN")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "always", "never"}))
      ->default_str("auto")
      ->group(kOutput);
}

void add_second_opinion(CLI::App& command, SecondOpinionMode& mode) {
  static const std::map<std::string, SecondOpinionMode> kModes{
      {"auto", SecondOpinionMode::automatic},
      {"always", SecondOpinionMode::always},
      {"never", SecondOpinionMode::never}};
  command
      .add_option_function<std::string>(
          "--second-opinion", [&mode](const std::string& word) { mode = kModes.at(word); },
          "let LIEF read input and output too: auto (files up to 16 MiB), always or never")
      ->type_name("WHEN")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "always", "never"}))
      ->default_str("auto");
}

void add_list(CLI::App& app, ListOptions& options) {
  CLI::App& command = *app.add_subcommand("list", "print the probes of files");
  command.footer(
      "Examples:\n"
      "  reprobe list app\n"
      "  reprobe list -p 'python:*' --json libpython3.11.so.1.0\n"
      "  reprobe list libfoo.a\n"
      "  reprobe list --deps app              # its libraries too, as ld.so finds them");
  add_common(command, options.common);
  auto* deps = command.add_flag(
      "--deps", options.deps,
      "also the libraries that FILE needs, directly or not, and its interpreter: those with "
      "probes. LD_LIBRARY_PATH and LD_PRELOAD do not count");
  command.add_option("--root", options.root, "look for them in the system under this folder")
      ->type_name("DIR")
      ->needs(deps)
      ->check(CLI::ExistingDirectory);
  command.add_option("FILE", options.files, "ELF files, or archives of them")->required();
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
      "  reprobe audit package.deb");
  add_common(command, options.common);
  command.add_flag("--sarif", options.sarif, "print SARIF 2.1.0, which code hosts show")
      ->excludes("--json")
      ->group(kOutput);
  const auto consumers = consumer_names();
  command
      .add_option("--consumers", options.consumers,
                  "only the verdicts of these tracers; repeatable, or with commas (default: all)")
      ->type_name("NAME")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(std::vector<std::string>(consumers.begin(), consumers.end())));
  command.add_option("PATH", options.paths, "files, folders (walked) and archives")->required();
}

void add_repairs(CLI::App& command, const char* name, std::vector<std::string>& rules,
                 const char* what) {
  command.add_option(name, rules, what)
      ->type_name("RULE,...")
      ->delimiter(',')
      ->allow_extra_args(false);
}

// FILE and -o; gives the latter.
CLI::Option* add_files(CLI::App& command, WriteOptions& options) {
  command.add_option("FILE", options.file, "a linked program or shared library")->required();
  return command.add_option("-o,--output", options.output, "write here instead of in place")
      ->type_name("OUT");
}

// What becomes of the file's attributes.
void add_safety(CLI::App& command, WriteOptions& options) {
  command.add_flag("--preserve-dates", options.preserve_dates, "keep the file's times");
  command
      .add_flag("--break-hardlinks", options.break_hardlinks,
                "in place on a file with several names: only this one gets the new contents")
      ->group(kSafety);
  command
      .add_flag("--drop-signature", options.drop_signature,
                "rewrite a file with an IMA or EVM signature, without the signature")
      ->group(kSafety);
  command
      .add_flag("--drop-verity", options.drop_verity,
                "rewrite a file with fs-verity, without fs-verity")
      ->group(kSafety);
  add_second_opinion(command, options.second_opinion);
}

void add_fix(CLI::App& app, FixCommandOptions& options) {
  CLI::App& command = *app.add_subcommand("fix", "remove dangling notes and repair the others");
  command.footer(
      "Exit: 0 done or nothing to do, 3 unreadable, 4 refused, 5 could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe fix app                      # in place, through a temporary file\n"
      "  reprobe fix old.so -o new.so\n"
      "  reprobe fix --dry-run app            # print what would change\n"
      "  reprobe fix --from-debug app.debug app   # a strip took the notes\n"
      "  reprobe fix --remove-ambiguous -p 'demo:*' app");
  add_common(command, options.common);
  auto* output = add_files(command, options);
  command.add_flag("--in-place")
      ->description("rewrite FILE itself (the default)")
      ->excludes(output);
  command.add_flag("--dry-run", options.dry_run, "print the plan, write nothing");
  command.add_flag("--remove-ambiguous", options.remove_ambiguous,
                   "also remove notes that are not proven dangling");
  command.add_flag("--respell", options.respell,
                   "write arguments in the spelling that most tracers read");
  auto* upgrade = command.add_flag("--upgrade")
                      ->description(
                          "write notes for the records of SystemTap up to 1.3, in a file without "
                          "notes (the default)");
  command
      .add_flag_callback(
          "--no-upgrade", [&options] { options.upgrade = false; }, "leave the records alone")
      ->excludes(upgrade);
  add_repairs(command, "--only", options.only, "make these repairs and no others");
  add_repairs(command, "--skip", options.skip, "make all repairs but these");
  command
      .add_option_function<std::string>(
          "--build-id",
          [&options](const std::string& word) { options.new_build_id = word == "new"; },
          "keep, or new: compute a new build-id of the same length")
      ->type_name("HOW")
      ->check(CLI::IsMember(std::vector<std::string>{"keep", "new"}))
      ->default_str("keep");
  add_safety(command, options);
  auto* from_debug = command
                         .add_option("--from-debug", options.from_debug,
                                     "bring back the notes that a strip deleted, from the separate "
                                     "debug file or the unstripped twin")
                         ->type_name("DEBUG");
  for (const char* other :
       {"--remove-ambiguous", "--build-id", "--only", "--skip", "--respell", "--upgrade"}) {
    from_debug->excludes(other);
  }
}

void add_sled(CLI::App& app, SledCommandOptions& options) {
  static const std::map<std::string, SledKind> kKinds{{"nop10", SledKind::nop10},
                                                      {"nop5", SledKind::nop5}};
  static const std::map<std::string, GuardMode> kGuards{
      {"auto", GuardMode::automatic}, {"always", GuardMode::always}, {"never", GuardMode::never}};
  CLI::App& command = *app.add_subcommand("sled", "give each probe site a patchable sled (x86-64)");
  command.footer(
      "nop10 is optimised by Linux 7.2 and later and is an ordinary site elsewhere; nop5 by Linux\n"
      "6.17 to 7.1 (and there kills forked children of a traced program: not for servers that "
      "fork).\n"
      "\n"
      "A file that has sleds keeps them and gets those of -p besides, or all of another --kind. "
      "With\n"
      "-o the output is always there: a copy where there is nothing to do.\n"
      "\n"
      "Exit: 0 done or nothing to do, 3 unreadable, 4 refused (in place also: no site could get a\n"
      "sled), 5 could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe sled app\n"
      "  reprobe sled --dry-run libfoo.so            # which site, which tactic\n"
      "  reprobe sled --kind=nop5 libfoo.so -o fast.so\n"
      "  reprobe sled --undo app                     # the original, byte for byte");
  add_common(command, options.common);
  add_files(command, options);
  command
      .add_option_function<std::string>(
          "--kind", [&options](const std::string& word) { options.kind = kKinds.at(word); },
          "the sled: nop10 or nop5")
      ->type_name("KIND")
      ->check(CLI::IsMember(std::vector<std::string>{"nop10", "nop5"}))
      ->default_str("nop10");
  command
      .add_option_function<std::string>(
          "--guard", [&options](const std::string& word) { options.guard = kGuards.at(word); },
          "protect the red zone at nop5 sleds: auto (where the function may use it), always or "
          "never")
      ->type_name("WHEN")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "always", "never"}))
      ->default_str("auto");
  command.add_flag("--debuggable", options.debuggable,
                   "no sled where a debugger's breakpoint on old code would break the way to it");
  command.add_flag("--undo", options.undo, "take the sleds out again");
  command.add_flag("--dry-run", options.dry_run, "print the plan, write nothing");
  add_safety(command, options);
}

void add_guards(CLI::App& app, GuardsCommandOptions& options) {
  static const std::map<std::string, GuardsCommand> kWays{{"site", GuardsCommand::site},
                                                          {"on", GuardsCommand::on},
                                                          {"restore", GuardsCommand::restore}};
  CLI::App& command =
      *app.add_subcommand("guards", "rewrite is-enabled checks, for tracers that raise no counter");
  command.footer(
      "site: code that tests a probe's counter tests the probe's own site instead (x86-64), which "
      "is\n"
      "no nop while anybody traces it; its notes name no counter any more. Of several sites the\n"
      "first note's is looked at: trace all of them. on: the counters are 1 from the start, so "
      "that\n"
      "the guarded code always runs. restore: the original, byte for byte.\n"
      "\n"
      "Exit: 0 done or nothing to do, 3 unreadable, 4 refused (or no check could be rewritten), 5\n"
      "could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe guards --to site app\n"
      "  reprobe guards --to site --dry-run libfoo.so    # which check, in place or in a stub\n"
      "  reprobe guards --to on -p 'python:*' python3 -o python3.traced\n"
      "  reprobe guards --to restore app");
  add_common(command, options.common);
  add_files(command, options);
  command
      .add_option_function<std::string>(
          "--to", [&options](const std::string& word) { options.to = kWays.at(word); },
          "site, on or restore")
      ->type_name("WHERE")
      ->check(CLI::IsMember(std::vector<std::string>{"site", "on", "restore"}))
      ->required();
  command.add_flag("--dry-run", options.dry_run, "print the plan, write nothing");
  add_safety(command, options);
}

void add_relativize(CLI::App& app, RelativizeCommandOptions& options) {
  CLI::App& command =
      *app.add_subcommand("relativize", "add a loaded index of the probes, which no strip deletes");
  command.footer(
      "The index (.note.reprobe) is read-only and needs no relocation: a program finds its own\n"
      "probes in it, and reprobe fix writes the notes from it once llvm-strip --strip-all deleted\n"
      "them. Again on a file that has one: the index is renewed where the notes changed.\n"
      "\n"
      "Exit: 0 done or nothing to do, 3 unreadable, 4 refused, 5 could not be written.\n"
      "\n"
      "Examples:\n"
      "  reprobe relativize app\n"
      "  reprobe relativize -p 'app:*' libfoo.so -o out.so   # fix gives back these alone\n"
      "  reprobe relativize --dry-run --json app             # what would change\n"
      "  reprobe fix app                                     # later: the notes are back");
  add_common(command, options.common);
  add_files(command, options);
  command.add_flag("--dry-run", options.dry_run, "print the plan, write nothing");
  add_safety(command, options);
}

void add_verify(CLI::App& app, VerifyOptions& options) {
  CLI::App& command =
      *app.add_subcommand("verify", "prove that a rewrite changed only what it says");
  command.footer(
      "Exit: 0 proven, 1 a difference that no rewrite of notes makes, 3 unreadable.\n"
      "\n"
      "Examples:\n"
      "  reprobe verify old.so new.so");
  add_common(command, options.common);
  command.add_option("BEFORE", options.before, "the file before the rewrite")->required();
  command.add_option("AFTER", options.after, "the file after it")->required();
  command.add_flag("--remove-ambiguous", options.removed_ambiguous,
                   "the rewrite was asked to remove ambiguous notes");
  command
      .add_option("--from-debug", options.from_debug,
                  "the rewrite brought back the notes of this debug file")
      ->type_name("DEBUG");
  command.add_flag("--respell", options.respelled, "the rewrite was asked to respell arguments");
  command.add_flag("--new-build-id", options.new_build_id,
                   "the rewrite was asked for a new build-id");
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

// Help and the version are results; everything else is a mistake on the command line.
int help_or_usage(const CLI::App& app, const CLI::ParseError& error, const std::string& first) {
  std::ostringstream out;
  std::ostringstream unused;
  if (app.exit(error, out, unused) == 0) {
    std::fputs(out.str().c_str(), stdout);
    return kDone;
  }
  if (first.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return kUsage;
  }
  const auto commands = app.get_subcommands();
  const std::string command = commands.empty() ? "" : " " + commands.front()->get_name();
  const Terminal terminal(ColorMode::automatic, false, false);
  terminal.error("", Error{ErrorCode::usage, "",
                           commands.empty() ? "no such command or option: " + first : error.what(),
                           "reprobe" + command + " --help shows what there is"});
  return kUsage;
}

int run(int argc, char** argv) {
  CLI::App app{"Audits and repairs the USDT probes (stapsdt notes) of ELF files.", "reprobe"};
  app.set_version_flag("--version", "reprobe " REPROBE_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  app.footer(
      "Exit: 0 nothing wrong, 1 findings, 2 usage, 3 unreadable, 4 refused, 5 internal.\n"
      "\n"
      "Examples:\n"
      "  reprobe list app           # which probes, where, alive or not\n"
      "  reprobe audit dist/        # what is broken, for CI\n"
      "  reprobe fix app            # repair in place after the link");
  ListOptions list;
  AuditOptions audit;
  FixCommandOptions fix;
  SledCommandOptions sled;
  GuardsCommandOptions guards;
  RelativizeCommandOptions relativize;
  VerifyOptions verify;
  DiffOptions diff;
  add_list(app, list);
  add_audit(app, audit);
  add_fix(app, fix);
  add_sled(app, sled);
  add_guards(app, guards);
  add_relativize(app, relativize);
  add_verify(app, verify);
  add_diff(app, diff);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return help_or_usage(app, error, argc > 1 ? argv[1] : "");
  }
  if (app.got_subcommand("list")) return run_list(list);
  if (app.got_subcommand("audit")) return run_audit(audit);
  if (app.got_subcommand("fix")) return run_fix(fix);
  if (app.got_subcommand("sled")) return run_sled(sled);
  if (app.got_subcommand("guards")) return run_guards(guards);
  if (app.got_subcommand("relativize")) return run_relativize(relativize);
  if (app.got_subcommand("diff")) return run_diff(diff);
  return run_verify(verify);
}

}  // namespace

int main(int argc, char** argv) {
  // Names of archive members and -p patterns are UTF-8 whatever the user's locale: the output is
  // the same everywhere.
  std::setlocale(LC_CTYPE, "C.UTF-8");
  std::signal(SIGBUS, on_bus_error);
  // Past a limit on the size of files, write() then says so, and the rewrite cleans up.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    hold_standard_streams();
    const int code = run(argc, argv);
    errno = 0;
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return lost_output(errno != 0 ? errno : EIO);
    }
    return code;
  } catch (const std::filesystem::filesystem_error& error) {
    return failed(std::string("internal: ") + error.what());
  } catch (const std::system_error& error) {
    // Thrown by fmt::print() when stdout's buffer is full and cannot be written.
    return lost_output(error.code().value());
  } catch (const std::bad_alloc&) {
    return failed("out of memory");
  } catch (const std::exception& error) {
    return failed(std::string("internal: ") + error.what());
  }
}
