#include "tool/debug_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "tool/elf_input.hpp"
#include "tool/write.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDebugFolder = "/usr/lib/debug";

// The name that .gnu_debuglink states; "" where there is none. It is a name and no path.
std::string debug_link(const ElfFile& file) {
  const Section* section = file.section(".gnu_debuglink");
  const auto bytes = section == nullptr ? Result<ByteView>(ByteView{}) : file.contents(*section);
  if (!bytes) return "";
  const std::string_view text = as_text(*bytes);
  const auto end = text.find('\0');
  if (end == std::string_view::npos || text.substr(0, end).find('/') != std::string_view::npos) {
    return "";
  }
  return std::string(text.substr(0, end));
}

// As gdb looks (gdb manual, "Debugging Information in Separate Files").
std::vector<std::string> places(const std::string& path, const ElfFile& file,
                                const std::string& id) {
  std::vector<std::string> result;
  if (id.size() > 2) {
    result.push_back(
        fmt::format("{}/.build-id/{}/{}.debug", kDebugFolder, id.substr(0, 2), id.substr(2)));
  }
  const std::string link = debug_link(file);
  if (link.empty()) return result;
  std::error_code failure;
  const fs::path folder = fs::weakly_canonical(path, failure).parent_path();
  result.push_back(folder / link);
  result.push_back(folder / ".debug" / link);
  result.push_back(std::string(kDebugFolder) + (folder / link).string());
  return result;
}

bool has_build_id(const std::string& path, const std::string& id) {
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) return false;
  auto source = map_input(path);
  const auto file = source ? ElfFile::open(std::move(*source)) : tl::unexpected(source.error());
  return file && file->build_id() == id;
}

// What it prints: the path of the file that it has fetched. "" where it is not installed or finds
// nothing.
std::string ask_debuginfod(const std::string& id) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string program = "debuginfod-find", what = "debuginfo", argument = id;
  std::array<char*, 4> arguments{program.data(), what.data(), argument.data(), nullptr};
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  std::string said;
  std::array<char, 512> piece{};
  for (ssize_t size = 0; failed == 0;) {
    size = ::read(pipe[0], piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    said.append(piece.data(), static_cast<std::size_t>(size));
  }
  ::close(pipe[0]);
  if (failed != 0) return "";
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return "";
  return said.substr(0, said.find('\n'));
}

}  // namespace

Result<std::string> find_debug_file(const std::string& path, const ElfFile& file) {
  const std::string id = file.build_id();
  if (id.empty()) {
    return fail(ErrorCode::refused, "--from-debug=auto",
                "the file has no build-id, by which its debug file would be found",
                "name the debug file");
  }
  std::string looked;
  for (const std::string& place : places(path, file, id)) {
    if (has_build_id(place, id)) return place;
    looked += (looked.empty() ? "" : ", ") + place;
  }
  const std::string fetched = ask_debuginfod(id);
  if (!fetched.empty() && has_build_id(fetched, id)) return fetched;
  return fail(ErrorCode::unreadable, "--from-debug=auto",
              fmt::format("no debug file with the build-id {} was found; looked for {}, and asked "
                          "debuginfod-find",
                          id, looked),
              "name the debug file, or set DEBUGINFOD_URLS");
}

Result<FixCommandOptions> with_debug_file(const FixCommandOptions& options) {
  if (options.from_debug != "auto") return options;
  const auto input = open_input(options);
  if (!input) return tl::unexpected(input.error());
  auto path = find_debug_file(options.file, input->file);
  if (!path) return tl::unexpected(path.error());
  FixCommandOptions found = options;
  found.from_debug = std::move(*path);
  return found;
}

}  // namespace reprobe
