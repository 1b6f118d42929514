#include "tool/ld_linker.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

extern "C" char** environ;

namespace reprobe {
namespace {

namespace fs = std::filesystem;

// The reprobes that have been asked for the linker, so that two of them never ask each other.
constexpr const char* kAsked = "REPROBE_LD_ASKED";

constexpr std::array kEndingSignals = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};

// Of the handlers: the linker that runs, and the file that goes with the process.
volatile pid_t running_linker = 0;
std::string doomed_file;  // not changed while the handler is in place

void pass_to_linker(int signal) {
  if (running_linker > 0) kill(running_linker, signal);
}

void remove_and_die(int signal) {
  unlink(doomed_file.c_str());
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void handle_ending_signals(void (*handler)(int)) {
  for (const int signal : kEndingSignals) {
    // What the caller ignores (nohup) stays ignored.
    if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

std::string own_path() {
  std::error_code failure;
  return fs::read_symlink("/proc/self/exe", failure).string();
}

std::vector<std::string> folders_in(const char* variable) {
  std::vector<std::string> folders;
  const char* value = std::getenv(variable);
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    folders.emplace_back(rest.substr(0, end));
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  return folders;
}

bool is_asked(const std::string& program, const std::vector<std::string>& asked) {
  for (const std::string& reprobe : asked) {
    std::error_code failure;
    if (fs::equivalent(program, reprobe, failure)) return true;
  }
  return false;
}

bool is_program(const std::string& path) {
  std::error_code failure;
  return fs::is_regular_file(path, failure) && access(path.c_str(), X_OK) == 0;
}

std::vector<char*> pointers(const std::string& program, const std::vector<std::string>& words) {
  std::vector<char*> result{const_cast<char*>(program.c_str())};
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

Result<std::string> find_linker(const std::string& name) {
  std::vector<std::string> asked = folders_in(kAsked);
  asked.push_back(own_path());
  std::string list;
  for (const std::string& path : asked) list += (list.empty() ? "" : ":") + path;
  setenv(kAsked, list.c_str(), 1);
  if (name.find('/') != std::string::npos) {
    if (is_asked(name, asked)) {
      return fail(ErrorCode::usage, "", name + " is reprobe itself",
                  "name the linker that is to make the link");
    }
    if (!is_program(name)) return fail(ErrorCode::usage, "", "no such linker: " + name);
    return name;
  }
  for (const char* variable : {"COMPILER_PATH", "PATH"}) {
    for (const std::string& folder : folders_in(variable)) {
      const std::string path = (fs::path(folder.empty() ? "." : folder) / name).string();
      if (is_program(path) && !is_asked(path, asked)) return path;
    }
  }
  return fail(ErrorCode::usage, "", "no " + name + " behind reprobe in PATH",
              "REPROBE_LD names the linker to run");
}

bool drops_base(const std::string& linker) {
  std::error_code failure;
  std::string name = fs::canonical(linker, failure).filename().string();
  if (name.starts_with("ld.")) name.erase(0, 3);
  if (name.starts_with("rust-")) name.erase(0, 5);
  return name.starts_with("lld") || name.starts_with("mold");
}

Result<LinkerEnd> run_linker(const std::string& linker, const std::vector<std::string>& words) {
  // Signals wait until the handler knows whom to pass them to.
  sigset_t ending;
  sigset_t before;
  sigemptyset(&ending);
  for (const int signal : kEndingSignals) sigaddset(&ending, signal);
  sigprocmask(SIG_BLOCK, &ending, &before);
  // main() ignores SIGXFSZ, which the linker would inherit.
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGXFSZ);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &before);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  auto arguments = pointers(linker, words);
  pid_t child = 0;
  const int failure =
      posix_spawn(&child, linker.c_str(), nullptr, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (failure == 0) {
    running_linker = child;
    handle_ending_signals(pass_to_linker);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (failure != 0) {
    return fail(ErrorCode::usage, "", fmt::format("{}: {}", linker, std::strerror(failure)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running_linker = 0;
  handle_ending_signals(SIG_DFL);
  if (WIFSIGNALED(status)) return LinkerEnd{128 + WTERMSIG(status), WTERMSIG(status)};
  return LinkerEnd{WEXITSTATUS(status), 0};
}

Error become(const std::string& program, const std::vector<std::string>& words) {
  std::signal(SIGXFSZ, SIG_DFL);
  auto arguments = pointers(program, words);
  execv(program.c_str(), arguments.data());
  return Error{ErrorCode::usage, "", fmt::format("{}: {}", program, std::strerror(errno)), ""};
}

DoomedFile::DoomedFile(const std::string& path) {
  doomed_file = path;
  handle_ending_signals(remove_and_die);
}

DoomedFile::~DoomedFile() {
  handle_ending_signals(SIG_DFL);
  if (!kept_) unlink(doomed_file.c_str());
}

void die_by(int signal) {
  std::signal(signal, SIG_DFL);
  raise(signal);
  _exit(128 + signal);
}

}  // namespace reprobe
