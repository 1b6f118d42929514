// reprobe run: copies with sleds -> the program, with the agent preloaded -> the counts.

#include "tool/run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "libprobe/deps/dependencies.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/options.hpp"
#include "tool/run_report.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t asked_for_table = 0;
volatile pid_t child_process = 0;

void on_ask(int) { asked_for_table = 1; }
void pass_on(int number) {
  if (child_process > 0) kill(child_process, number);
}

// As execvp(3) finds it; "" where there is none.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (true) {
    const auto colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    const fs::path file = fs::path(folder.empty() ? "." : std::string(folder)) / name;
    if (access(file.c_str(), X_OK) == 0 && !fs::is_directory(file)) return file.string();
    if (colon == std::string_view::npos) return "";
    rest.remove_prefix(colon + 1);
  }
}

// Beside the command, where it was built, or in the library folder that it was installed with.
std::string find_agent() {
  const char* stated = std::getenv("REPROBE_AGENT");
  if (stated != nullptr) return stated;
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& folder : {own, own.parent_path() / "lib", fs::path(REPROBE_LIBDIR)}) {
    const fs::path agent = folder / "libreprobe-agent.so";
    if (fs::exists(agent, error)) return agent.string();
  }
  return "";
}

void prepend(const char* name, const std::string& value) {
  const char* old = std::getenv(name);
  const bool more = old != nullptr && *old != 0;
  setenv(name, (more ? value + ":" + old : value).c_str(), 1);
}

class ProgramRunner {
 public:
  explicit ProgramRunner(const RunOptions& options)
      : options_(options),
        terminal_(options.common.color, options.common.quiet, options.common.verbose) {}

  Result<int> run() {
    if (!options_.hist.empty()) {
      probes_ = latency_probes(options_.hist);
      if (!probes_) {
        return fail(ErrorCode::usage, "--hist=" + options_.hist, "not two probes",
                    "--hist provider:begin..provider:end");
      }
    }
    const std::string program = find_program(options_.command.front());
    if (program.empty())
      return fail(ErrorCode::unreadable, options_.command.front(), "no such program");
    const std::string agent = find_agent();
    if (agent.empty()) {
      return fail(ErrorCode::refused, "libreprobe-agent.so", "the agent is not installed",
                  "REPROBE_AGENT=FILE says where it is");
    }
    if (auto done = table_.open(); !done) return tl::unexpected(done.error());
    const std::string copy = prepare(program);
    start(copy, agent);
    if (child_process < 0) return fail(ErrorCode::io, "fork", std::strerror(errno));
    const int code = wait_for_end();
    if (auto done = print(); !done) return tl::unexpected(done.error());
    return code;
  }

 private:
  std::string sledded(const std::string& file, const std::string& name) {
    ProgramCopy made = sledded_copy(file, name);
    if (!made.why.empty()) {
      terminal_.warning(fmt::format("{}: {}: its probes are not counted", file, made.why));
    } else if (made.path != file) {
      terminal_.detail(fmt::format("{} runs as {}", file, made.path));
    }
    return made.path;
  }

  // Copies with sleds of the program and of the libraries with probes that it names.
  std::string prepare(const std::string& program) {
    const auto file = open_elf(fs::path(program));
    if (!file) {
      terminal_.warning(program + ": not an ELF file: what it starts is not given sleds");
      return program;
    }
    std::vector<std::pair<std::string, std::string>> libraries;  // path, name
    for (const Dependency& d : find_dependencies(program, *file, Root()).found)
      libraries.emplace_back(d.path.string(), d.name);
    for (const std::string& library : options_.libraries)
      libraries.emplace_back(library, fs::path(library).filename().string());
    for (const auto& [path, name] : libraries) {
      // The dynamic linker is found by its path.
      if (name.find('/') != std::string::npos || !has_probes(path)) continue;
      const std::string copy = sledded(path, name);
      if (copy != path) prepend("LD_LIBRARY_PATH", fs::path(copy).parent_path().string());
    }
    return sledded(program, fs::path(program).filename().string());
  }

  void start(const std::string& program, const std::string& agent) {
    std::vector<char*> arguments;
    for (const std::string& argument : options_.command)
      arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    for (const int number : {SIGINT, SIGQUIT}) std::signal(number, SIG_IGN);
    for (const int number : {SIGTERM, SIGHUP}) std::signal(number, pass_on);
    struct sigaction ask {};
    ask.sa_handler = on_ask;
    sigaction(SIGUSR1, &ask, nullptr);
    child_process = fork();
    if (child_process != 0) return;
    for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGBUS, SIGXFSZ})
      std::signal(number, SIG_DFL);
    prepend("LD_PRELOAD", agent);
    std::vector<std::string> globs = options_.common.patterns;
    if (probes_) globs = {probes_->first, probes_->second};
    setenv("REPROBE", fmt::format("{}", fmt::join(globs, ",")).c_str(), 1);
    setenv("REPROBE_TRACE", options_.trace || probes_ ? "1" : "", 1);
    setenv("REPROBE_TABLE", table_.path().c_str(), 1);
    setenv("REPROBE_FOLLOW", std::to_string(options_.follow).c_str(), 1);
    execv(program.c_str(), arguments.data());
    fmt::print(stderr, "reprobe: error: {}: {}\n", program, std::strerror(errno));
    _exit(127);
  }

  int wait_for_end() {
    int status = 0;
    while (waitpid(child_process, &status, 0) < 0 && errno == EINTR) {
      if (asked_for_table == 0) continue;
      asked_for_table = 0;
      (void)print();
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string report() {
    if (probes_) return latency_text(table_, probes_->first, probes_->second, options_.common.json);
    if (options_.trace) return trace_text(table_, options_.common.json);
    return counts_text(table_, options_.common.json);
  }

  Result<void> print() {
    const std::string text = report();
    std::FILE* const out =
        options_.output.empty() ? stderr : std::fopen(options_.output.c_str(), "w");
    if (out == nullptr) return fail(ErrorCode::io, options_.output, std::strerror(errno));
    std::fputs(text.c_str(), out);
    const bool good = out == stderr ? std::fflush(out) == 0 : std::fclose(out) == 0;
    if (!good) return fail(ErrorCode::io, options_.output, std::strerror(errno));
    if (!table_.has_agents()) {
      terminal_.warning(
          "no process had the agent: a static or set-user-ID program takes no preloaded library");
    }
    return {};
  }

  const RunOptions& options_;
  Terminal terminal_;
  std::optional<std::pair<std::string, std::string>> probes_;  // of --hist
  RunTable table_;
};

}  // namespace

int run_program(const RunOptions& options) {
  const Terminal terminal(options.common.color, options.common.quiet, options.common.verbose);
  const auto result = ProgramRunner(options).run();
  if (result) return *result;
  terminal.error("", result.error());
  return exit_code(result.error().code);
}

}  // namespace reprobe
