// reprobe ld: the real linker, and then the steps on what it linked.

#include "tool/ld.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "libprobe/elf/constants.hpp"
#include "libprobe/elf/file.hpp"
#include "tool/exit_code.hpp"
#include "tool/ld_arguments.hpp"
#include "tool/ld_linker.hpp"
#include "tool/ld_steps.hpp"
#include "tool/options.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 6> kLinkerNames = {"ld",     "ld.bfd",  "ld.gold",
                                                          "ld.lld", "ld.mold", "ld.wild"};
constexpr std::string_view kCompilerName = "reprobe-cc";

// The weak symbol that sys/sdt.h defines in .stapsdt.base. With --gc-sections lld and mold drop
// that section, which nothing refers to; a symbol named by -u is kept with its section.
constexpr const char* kBaseSymbol = "_.stapsdt.base";
constexpr const char* kBaseSection = ".stapsdt.base";
constexpr const char* kCounterSection = ".probes";

std::string text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

const Terminal& plain_terminal() {
  static const Terminal terminal(ColorMode::automatic, false, false);
  return terminal;
}

int say_error(const Error& error) {
  plain_terminal().error("", error);
  return exit_code(error.code);
}

// The folder with the names of linkers: where it is installed, or stands in a build.
std::optional<std::string> linker_folder() {
  std::error_code failure;
  const fs::path own = fs::read_symlink("/proc/self/exe", failure);
  for (const char* place : {REPROBE_LD_FOLDER, "ld"}) {
    const fs::path folder = (own.parent_path() / place).lexically_normal();
    if (fs::exists(folder / "ld", failure)) return folder.string();
  }
  return std::nullopt;
}

int print_folder() {
  const auto folder = linker_folder();
  if (folder) {
    fmt::print("{}\n", *folder);
    return kDone;
  }
  return say_error(Error{ErrorCode::unreadable, "",
                         "the folder of linkers is not installed beside reprobe",
                         "reprobe ld --make-dir DIR makes one"});
}

int make_folder(const std::string& folder) {
  std::error_code failure;
  const fs::path own = fs::read_symlink("/proc/self/exe", failure);
  fs::create_directories(folder, failure);
  for (const std::string_view name : kLinkerNames) {
    const fs::path link = fs::path(folder) / name;
    if (fs::is_symlink(link, failure)) fs::remove(link, failure);
    fs::create_symlink(own, link, failure);
    if (failure)
      return say_error(Error{ErrorCode::io, "", link.string() + ": " + failure.message(), ""});
  }
  return kDone;
}

// What tells that a file was written: linkers write it anew, or in its place.
struct Written {
  bool exists{};
  dev_t device{};
  ino_t inode{};
  off_t size{};
  timespec modified{};

  static Written of(const std::string& path) {
    struct stat found;
    if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return {};
    return {true, found.st_dev, found.st_ino, found.st_size, found.st_mtim};
  }

  [[nodiscard]] bool differs_from(const Written& other) const {
    return exists != other.exists || device != other.device || inode != other.inode ||
           size != other.size || modified.tv_sec != other.modified.tv_sec ||
           modified.tv_nsec != other.modified.tv_nsec;
  }
};

// Only a program or a shared library has steps: not an object of -r, an image of --oformat, or a
// file without ELF's first bytes.
bool is_linked_file(const std::string& path) {
  const auto source = map_file(path);
  const auto file = source ? ElfFile::open(*source) : tl::unexpected(source.error());
  return file && (file->header().type == ET_EXEC || file->header().type == ET_DYN);
}

// What lld and mold need to keep the probes whole, for objects that have some. A counter on a page
// that becomes read-only is one that no tracer can raise.
void add_for_probes(const std::string& linker, const LinkArguments& link,
                    std::vector<std::string>& words) {
  if (link.relocatable || !drops_base(linker)) return;
  if (link.gc_sections && any_object_has(link.inputs, kBaseSection)) {
    words.insert(words.end(), {"-u", kBaseSymbol});
  }
  if (!link.separates && any_object_has(link.inputs, kCounterSection)) {
    words.insert(words.end(), {"-z", "separate-loadable-segments"});
  }
}

int link_with_steps(const std::string& linker, std::vector<std::string> words,
                    const std::vector<LinkStep>& steps) {
  const LinkArguments link = read_link_arguments(words);
  add_for_probes(linker, link, words);
  const Written before = Written::of(link.output);
  const auto end = run_linker(linker, words);
  if (!end) return say_error(end.error());
  if (end->signal != 0) die_by(end->signal);
  if (end->code != 0 || link.incremental) return end->code;
  const Written after = Written::of(link.output);
  if (!after.exists || !after.differs_from(before) || !is_linked_file(link.output)) return kDone;
  return run_steps(steps, link.output, object_files(link.inputs), plain_terminal());
}

int link_behind(const std::string& name, const std::vector<std::string>& words,
                const std::string& steps_text) {
  const auto steps = parse_steps(steps_text);
  if (!steps) return say_error(steps.error());
  const auto linker = find_linker(name);
  if (!linker) return say_error(linker.error());
  if (steps->empty()) return say_error(become(*linker, words));
  return link_with_steps(*linker, words, *steps);
}

// `cc` with -B in front of its other words: GCC and clang look there for linkers first.
int compile_behind(const std::vector<std::string>& words) {
  const auto folder = linker_folder();
  if (!folder) return print_folder();
  const auto compiler = find_linker("cc");
  if (!compiler) return say_error(compiler.error());
  std::vector<std::string> all = {"-B" + *folder};
  all.insert(all.end(), words.begin(), words.end());
  return say_error(become(*compiler, all));
}

std::string default_steps() {
  return std::getenv("REPROBE_STEPS") == nullptr ? kDefaultSteps : text_of("REPROBE_STEPS");
}

std::string name_of_program(const std::string& program) {
  return fs::path(program).filename().string();
}

}  // namespace

bool is_called_as_linker(const std::string& program) {
  const std::string name = name_of_program(program);
  return name == kCompilerName || std::ranges::find(kLinkerNames, name) != kLinkerNames.end();
}

int run_as_linker(const std::string& program, const std::vector<std::string>& words) {
  const std::string name = name_of_program(program);
  if (name == kCompilerName) return compile_behind(words);
  const std::string chosen = text_of("REPROBE_LD");
  return link_behind(chosen.empty() ? name : chosen, words, default_steps());
}

int run_ld(const LdOptions& options) {
  if (options.print_folder) return print_folder();
  if (!options.new_folder.empty()) return make_folder(options.new_folder);
  std::vector<std::string> words = options.words;
  std::string linker = text_of("REPROBE_LD");
  if (linker.empty()) linker = "ld";
  if (!words.empty() && !words.front().starts_with('-')) {
    linker = words.front();
    words.erase(words.begin());
  }
  std::string steps;
  for (const std::string& step : options.steps) steps += (steps.empty() ? "" : ",") + step;
  return link_behind(linker, words, options.steps.empty() ? default_steps() : steps);
}

}  // namespace reprobe
