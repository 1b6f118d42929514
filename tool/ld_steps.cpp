#include "tool/ld_steps.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "libprobe/audit/read_probes.hpp"
#include "reprobe/reprobe.hpp"
#include "tool/exit_code.hpp"
#include "tool/ld_linker.hpp"
#include "tool/options.hpp"

namespace reprobe {
namespace {

constexpr std::array<std::string_view, 5> kSteps = {"fix", "audit", "guards", "relativize", "sled"};

bool is_step(std::string_view word) { return std::ranges::find(kSteps, word) != kSteps.end(); }

std::string_view first_word(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return "";
  text.remove_prefix(begin);
  return text.substr(0, text.find(' '));
}

// What stands between commas, put together again where it is no step of its own.
std::vector<std::string> step_texts(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream pieces(text);
  for (std::string piece; std::getline(pieces, piece, ',');) {
    if (result.empty() || is_step(first_word(piece))) {
      result.push_back(std::move(piece));
    } else {
      result.back() += "," + piece;
    }
  }
  return result;
}

// What a step prints, kept back: the output of a link is the linker's. Nothing is lost where no
// such file can be made; then all goes to stderr at once.
class HeldOutput {
 public:
  HeldOutput()
      : stdout_(dup(STDOUT_FILENO)),
        stderr_(dup(STDERR_FILENO)),
        held_(memfd_create("reprobe", MFD_CLOEXEC)) {
    std::fflush(stdout);
    dup2(held_ >= 0 ? held_ : STDERR_FILENO, STDOUT_FILENO);
    if (held_ >= 0) dup2(held_, STDERR_FILENO);
  }
  HeldOutput(const HeldOutput&) = delete;
  HeldOutput& operator=(const HeldOutput&) = delete;
  ~HeldOutput() {
    give_back();
    if (held_ >= 0) close(held_);
  }

  // From here on the streams are the process's again; what was held goes to stderr.
  void show() {
    give_back();
    if (held_ < 0) return;
    lseek(held_, 0, SEEK_SET);
    std::array<char, 65536> buffer;
    for (ssize_t size = 0; (size = read(held_, buffer.data(), buffer.size())) > 0;) {
      std::fwrite(buffer.data(), 1, static_cast<std::size_t>(size), stderr);
    }
  }

 private:
  void give_back() {
    std::fflush(stdout);
    for (auto& [saved, stream] : {std::pair<int&, int>(stdout_, STDOUT_FILENO),
                                  std::pair<int&, int>(stderr_, STDERR_FILENO)}) {
      if (saved < 0) continue;
      dup2(saved, stream);
      close(saved);
      saved = -1;
    }
  }

  int stdout_;
  int stderr_;
  int held_;
};

bool has_option(const LinkStep& step, std::string_view option) {
  return std::ranges::any_of(step,
                             [&](const std::string& word) { return word.starts_with(option); });
}

// The options that a step has in a link unless it says otherwise: a build is told of errors, and
// LIEF, which takes seconds for thousands of probes, is not asked.
std::vector<std::string> command_line(const LinkStep& step, const std::string& file,
                                      const std::vector<std::string>& objects) {
  std::vector<std::string> words = {"reprobe"};
  words.insert(words.end(), step.begin(), step.end());
  if (step.front() == "audit") {
    if (!has_option(step, "--fail-on")) words.emplace_back("--fail-on=error");
  } else {
    if (!has_option(step, "--second-opinion")) words.emplace_back("--second-opinion=never");
  }
  words.push_back(file.starts_with('-') ? "./" + file : file);
  if (!objects.empty()) {
    words.emplace_back("--objects");
    words.insert(words.end(), objects.begin(), objects.end());
  }
  return words;
}

int run_step(const std::vector<std::string>& words, bool verbose) {
  HeldOutput held;
  const int code = run_command_line(words);
  if (code != kDone || verbose) held.show();
  return code;
}

// Does the file have probes at all? What cannot be read is for `fix` to say.
bool may_be_empty(const std::string& file) {
  const auto elf = open_elf(std::filesystem::path(file));
  return elf && read_probes(*elf).probes.empty();
}

}  // namespace

Result<std::vector<LinkStep>> parse_steps(const std::string& text) {
  std::vector<LinkStep> steps;
  for (const std::string& piece : step_texts(text)) {
    LinkStep step;
    std::istringstream words(piece);
    for (std::string word; words >> word;) step.push_back(std::move(word));
    if (step.empty()) continue;
    if (!is_step(step.front())) {
      return fail(ErrorCode::usage, "", "no such step: " + step.front(),
                  fmt::format("steps are {}", fmt::join(kSteps, ", ")));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

int run_steps(const std::vector<LinkStep>& steps, const std::string& file,
              const std::vector<std::string>& objects, const Terminal& terminal) {
  DoomedFile doomed(file);
  const bool no_probes = may_be_empty(file);
  // The objects say where code was when it was linked: they prove nothing once it has moved.
  bool as_linked = true;
  for (const LinkStep& step : steps) {
    const bool judges = step.front() == "fix" || step.front() == "audit";
    if (!judges) as_linked = false;
    // A build gives its steps to all its programs; those without probes have nothing to move.
    if (!judges && no_probes) continue;
    const bool use_objects = judges && as_linked && !no_probes;
    const int code =
        run_step(command_line(step, file, use_objects ? objects : std::vector<std::string>{}),
                 has_option(step, "-v") || has_option(step, "--verbose"));
    if (code == kDone) continue;
    terminal.error(file,
                   Error{ErrorCode::refused, "",
                         fmt::format("the step '{}' failed with exit code {}; the linked file "
                                     "was removed",
                                     fmt::join(step, " "), code),
                         ""});
    return code;
  }
  doomed.keep();
  return kDone;
}

}  // namespace reprobe
