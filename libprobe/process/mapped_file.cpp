#include "libprobe/process/mapped_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "libprobe/elf/file.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kMostLinks = 4;  // mappings come and go while they are looked at
constexpr Size kLongestBuildId{64};    // a hostile note may be as large as its file

std::filesystem::path in_root(const Process& process, const std::string& path) {
  return process.entry("root") / path.substr(path.starts_with('/'));
}

bool is_mapped(const Result<OpenedFile>& file, const Mapping& mapping) {
  return file && file->identity.device == mapping.device && file->identity.inode == mapping.inode;
}

// overlayfs and btrfs show another device in maps than stat() gives. What the process has in memory
// then tells: the build-id of the file, at its place.
bool has_same_build_id(const Process& process, std::span<const Mapping> mappings,
                       const OpenedFile& found) {
  const auto source = mapped_source(found);
  const auto file = source ? ElfFile::open(*source) : tl::unexpected(source.error());
  const auto range = file ? file->build_id_range() : std::nullopt;
  if (!range || range->second > kLongestBuildId) return false;
  const auto id = (*source)->slice(range->first, range->second, "the build-id");
  for (const Mapping& part : mappings) {
    if (!id || !in_range(range->first.value, part.offset, part.size())) continue;
    const auto memory =
        process.memory(part.start + (range->first.value - part.offset), range->second);
    return memory && std::ranges::equal(*memory, *id);
  }
  return false;
}

}  // namespace

Result<OpenedFile> find_mapped(const Process& process, std::span<const Mapping> mappings) {
  // The very inode, whatever its path leads to now, in whatever mount namespace: root only.
  for (const Mapping& mapping : mappings.first(std::min(mappings.size(), kMostLinks))) {
    auto file = find_regular(process.entry("map_files") /
                             fmt::format("{:x}-{:x}", mapping.start, mapping.end));
    if (file || file.error().where == kSpecialFile) return file;
  }
  const Mapping& mapping = mappings.front();
  struct Place {
    std::filesystem::path path;
    bool leads_to_it{};  // as the kernel says
  };
  std::vector<Place> places{{process.entry("exe"), true}};
  for (const std::string& path : possible_paths(mapping)) {
    // What is called as a file that is gone was called is another file.
    places.push_back({in_root(process, path), !mapping.deleted || says_deleted(path)});
  }
  std::optional<OpenedFile> other;
  Error error;
  for (const Place& place : places) {
    auto file = find_regular(place.path);
    if (is_mapped(file, mapping)) return file;
    if (file && !other && place.leads_to_it && has_same_build_id(process, mappings, *file)) {
      other = std::move(*file);
    }
    if (!file && error.message.empty()) error = file.error();
  }
  if (other) return std::move(*other);
  const bool at_path = find_regular(in_root(process, mapping.path)).has_value();
  return fail(ErrorCode::unreadable, "",
              mapping.deleted
                  ? "deleted or replaced on disk: only map_files leads to it, which takes root"
              : at_path ? "what is at its path is not known to be this file, and only root can tell"
                        : "cannot be opened: " + error.message);
}

namespace {

// The name that a file had, where what the kernel writes in maps can mean two. The link of a
// descriptor says it as it is.
std::optional<std::string> lost_name(const Mapping& mapping, const OpenedFile& file) {
  if (mapping.written.find("\\012") == std::string::npos) return std::nullopt;
  std::error_code failure;
  const auto link =
      std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", *file.place), failure);
  const std::string name = link.string();
  return !failure && name == mapping.written ? std::optional(without_mark(name)) : std::nullopt;
}

}  // namespace

MappedName name_of(const Process& process, const Mapping& mapping, const OpenedFile& file) {
  for (const std::string& path : possible_paths(mapping)) {
    const auto found =
        path.starts_with('/') ? find_regular(in_root(process, path)) : tl::unexpected(Error{});
    if (found && found->identity.device == file.identity.device &&
        found->identity.inode == file.identity.inode) {
      return {path, false};
    }
  }
  if (!mapping.deleted) return {mapping.path, false};
  return {lost_name(mapping, file).value_or(mapping.path), true};
}

}  // namespace reprobe
