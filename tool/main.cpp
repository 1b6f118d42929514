// Which command runs, and what becomes of faults that nothing else caught.

#include <archive.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "reprobe/reprobe.hpp"
#include "tool/bench.hpp"
#include "tool/check_script.hpp"
#include "tool/command_line.hpp"
#include "tool/exit_code.hpp"
#include "tool/ld.hpp"
#include "tool/options.hpp"
#include "tool/run.hpp"
#include "tool/write.hpp"

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
  std::fputs(("reprobe: error: " + what + written_note() + "\n").c_str(), stderr);
  return kInternal;
}

int lost_output(int number) {
  return failed("standard output cannot be written: " + std::generic_category().message(number));
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

// What stands behind the "--" of `reprobe ld` is another program's command line. Gives the number
// of words in front of it.
int take_linker_words(int argc, char** argv, LdOptions& ld) {
  if (argc < 2 || std::string_view(argv[1]) != "ld") return argc;
  for (int i = 2; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--") continue;
    ld.words.assign(argv + i + 1, argv + argc);
    ld.has_words = true;
    return i;
  }
  return argc;
}

std::string version_text() {
  std::string text = "reprobe " REPROBE_VERSION "\nwith ";
  for (const auto& [name, version] : library_versions()) text += name + " " + version + ", ";
  return text + fmt::format("libarchive {}, fmt {}.{}.{}, nlohmann-json {}.{}.{}, CLI11 {}",
                            archive_version_string() + std::string_view("libarchive ").size(),
                            FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100,
                            NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                            NLOHMANN_JSON_VERSION_PATCH, CLI11_VERSION);
}

int run(int argc, char** argv) {
  CLI::App app{"Audits and repairs the USDT probes (stapsdt notes) of ELF files.", "reprobe"};
  app.set_version_flag("--version", version_text);
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
  LdOptions ld;
  RunOptions program;
  CheckScriptOptions check;
  BenchOptions bench;
  add_list(app, list);
  add_audit(app, audit);
  add_fix(app, fix);
  add_sled(app, sled);
  add_guards(app, guards);
  add_relativize(app, relativize);
  add_verify(app, verify);
  add_diff(app, diff);
  add_ld(app, ld);
  add_run(app, program);
  add_check(app, check);
  add_bench(app, bench);
  try {
    app.parse(take_linker_words(argc, argv, ld), argv);
  } catch (const CLI::ParseError& error) {
    return help_or_usage(app, error, argc > 1 ? argv[1] : "");
  }
  if (app.got_subcommand("list")) return list.pid.empty() ? run_list(list) : run_list_process(list);
  if (app.got_subcommand("audit")) return run_audit(audit);
  if (app.got_subcommand("fix")) return run_fix(fix);
  if (app.got_subcommand("sled")) return run_sled(sled);
  if (app.got_subcommand("guards")) return run_guards(guards);
  if (app.got_subcommand("relativize")) return run_relativize(relativize);
  if (app.got_subcommand("diff")) return run_diff(diff);
  if (app.got_subcommand("ld")) return run_ld(ld);
  if (app.got_subcommand("run")) return run_program(program);
  if (app.got_subcommand("check")) return run_check_script(check);
  if (app.got_subcommand("bench")) return run_bench(bench);
  return run_verify(verify);
}

}  // namespace

int reprobe::run_command_line(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  return run(static_cast<int>(argv.size()), argv.data());
}

int main(int argc, char** argv) {
  // Names of archive members and -p patterns are UTF-8 whatever the user's locale: the output is
  // the same everywhere.
  std::setlocale(LC_CTYPE, "C.UTF-8");
  std::signal(SIGBUS, on_bus_error);
  // Past a limit on the size of files, write() then says so, and the rewrite cleans up.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    hold_standard_streams();
    const int code = argc > 0 && is_called_as_linker(argv[0])
                         ? run_as_linker(argv[0], {argv + 1, argv + argc})
                         : run(argc, argv);
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
