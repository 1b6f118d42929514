// Copies with sleds, by build-id, size and time of the file: made once.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "libprobe/notes/stapsdt.hpp"
#include "tool/elf_input.hpp"
#include "tool/exit_code.hpp"
#include "tool/options.hpp"
#include "tool/run.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

// Of this user alone: what is executed from there must be nobody else's.
std::string own_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return {};
  struct stat status {};
  const bool own = lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                   status.st_uid == geteuid() && (status.st_mode & 022) == 0;
  return own && access(path.c_str(), W_OK | X_OK) == 0 ? path.string() : std::string{};
}

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string folder;
  if (cache != nullptr && *cache == '/') folder = own_folder(fs::path(cache) / "reprobe");
  if (folder.empty() && home != nullptr && *home == '/')
    folder = own_folder(fs::path(home) / ".cache" / "reprobe");
  if (folder.empty()) {
    std::error_code error;
    folder = own_folder(fs::temp_directory_path(error) / fmt::format("reprobe-{}", geteuid()));
  }
  return folder;
}

std::optional<ElfFile> open_quietly(const std::string& path) {
  auto file = open_elf(fs::path(path));
  return file ? std::optional(std::move(*file)) : std::nullopt;
}

}  // namespace

bool has_probes(const std::string& path) {
  const auto file = open_quietly(path);
  return file && std::ranges::any_of(file->sections(), holds_notes);
}

ProgramCopy sledded_copy(const std::string& path, const std::string& name) {
  const auto file = open_quietly(path);
  if (!file) return {path, "not an ELF file"};
  if (file->section(kSlotSection) != nullptr) return {path, ""};
  if (std::ranges::none_of(file->sections(), holds_notes)) return {path, ""};
  const std::string cache = cache_folder();
  if (cache.empty()) return {path, "no folder for a copy with sleds can be written"};
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return {path, "cannot be read"};
  const std::string key =
      fmt::format("{}-{}-{}.{:09}-" REPROBE_VERSION, file->build_id(), status.st_size,
                  status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  const std::string folder = own_folder(fs::path(cache) / key);
  if (folder.empty()) return {path, "no folder for a copy with sleds can be written"};
  const std::string copy = (fs::path(folder) / fs::path(name).filename()).string();
  if (access(copy.c_str(), R_OK) == 0) return {copy, ""};
  SledCommandOptions options;
  options.file = path;
  options.write.output = copy;
  options.request.kind = SledKind::slot;
  options.common.quiet = true;
  if (run_sled(options) != kDone) return {path, "it cannot have sleds"};
  return {copy, ""};
}

}  // namespace reprobe
