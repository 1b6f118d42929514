#include "tool/inputs.hpp"

#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "libprobe/elf/open_file.hpp"
#include "tool/archive.hpp"
#include "tool/elf_input.hpp"
#include "tool/image.hpp"
#include "tool/thin_archive.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

class FolderWalk {
 public:
  FolderWalk(const WalkOptions& options, const std::function<void(InputFile)>& on_file,
             const std::function<void(const std::string&, const Error&)>& on_error)
      : options_(options), on_file_(on_file), on_error_(on_error) {}

  void walk(const fs::path& top, std::size_t argument) {
    struct stat status {};
    if (stat(top.c_str(), &status) == 0) device_ = status.st_dev;
    std::vector<fs::path> todo{top};
    while (!todo.empty()) {
      const fs::path here = std::move(todo.back());
      todo.pop_back();
      if (is_image_folder(here.string())) {
        on_file_({here.string(), here == top, argument});
        continue;
      }
      std::vector<fs::path> folders;
      for (const fs::path& entry : entries_of(here)) visit(entry, argument, folders);
      todo.insert(todo.end(), folders.rbegin(), folders.rend());
    }
  }

 private:
  std::vector<fs::path> entries_of(const fs::path& folder) const {
    std::error_code failure;
    std::vector<fs::path> entries;
    for (fs::directory_iterator it(folder, failure), end; !failure && it != end;
         it.increment(failure)) {
      entries.push_back(it->path());
    }
    if (failure) {
      on_error_(folder.string(),
                Error{ErrorCode::unreadable, "",
                      fmt::format("the folder cannot be read: {}", failure.message()), ""});
    }
    std::ranges::sort(entries);
    return entries;
  }

  void visit(const fs::path& entry, std::size_t argument, std::vector<fs::path>& folders) {
    if (excluded(entry)) return;
    struct stat status {};
    // What vanished is said when it is opened, as what cannot be read.
    const bool there = lstat(entry.c_str(), &status) == 0;
    if (there && S_ISDIR(status.st_mode)) {
      if (!options_.one_file_system || status.st_dev == device_) folders.push_back(entry);
      return;
    }
    if (there && !S_ISREG(status.st_mode)) return;
    if (there && status.st_nlink > 1 && !seen_.emplace(status.st_dev, status.st_ino).second)
      return;
    on_file_({entry.string(), false, argument});
  }

  bool excluded(const fs::path& path) const {
    const std::string whole = path.string(), name = path.filename().string();
    return std::ranges::any_of(options_.exclude, [&](const std::string& glob) {
      return fnmatch(glob.c_str(), name.c_str(), 0) == 0 ||
             fnmatch(glob.c_str(), whole.c_str(), 0) == 0;
    });
  }

  const WalkOptions& options_;
  const std::function<void(InputFile)>& on_file_;
  const std::function<void(const std::string&, const Error&)>& on_error_;
  dev_t device_{};
  std::set<std::pair<dev_t, ino_t>> seen_;  // of files with several links
};

void read_plain_file(const InputFile& file, const InputHandlers& handlers) {
  const std::string& path = file.path;
  auto source = handlers.keeps_sources ? map_file(path) : open_file(path);
  if (!source) return handlers.on_error(path, source.error());
  const Size head_size{std::min(kHeadSize, (*source)->size())};
  const auto head = (*source)->slice(FileOffset{0}, head_size, "the first bytes");
  if (!head) return handlers.on_error(path, head.error());
  // Its members are files of their own, which a walk through a folder meets anyway.
  if (file.named && is_thin_archive(*head)) {
    const auto all = (*source)->slice(FileOffset{0}, Size{(*source)->size()}, "the archive");
    if (!all) return handlers.on_error(path, all.error());
    return for_each_thin_member(path, *all, handlers);
  }
  switch (file_kind(*head)) {
    case FileKind::elf:
      return handlers.on_elf(path, std::move(*source));
    case FileKind::archive:
    case FileKind::zip:
    case FileKind::compressed:
      return for_each_member(path, file.named, handlers);
    case FileKind::unread:
      return handlers.on_error(path, unread_error(*head));
    case FileKind::other:
      // The reader says what is wrong with it: empty, or which magic it has.
      if (file.named) handlers.on_elf(path, std::move(*source));
  }
}

}  // namespace

void for_each_file(const std::vector<std::string>& paths, bool folders, const WalkOptions& options,
                   const std::function<void(InputFile)>& on_file,
                   const std::function<void(const std::string&, const Error&)>& on_error) {
  FolderWalk walk(options, on_file, on_error);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::error_code failure;
    const bool folder = fs::is_directory(paths[i], failure);
    if (folder && folders) {
      walk.walk(paths[i], i);
    } else {
      on_file({paths[i], true, i});
    }
  }
}

void for_each_elf_of(const InputFile& file, const InputHandlers& handlers) {
  handlers.on_visit(file.path);
  std::error_code failure;
  if (fs::is_directory(file.path, failure) && is_image_folder(file.path))
    return for_each_image_file(file.path, handlers);
  read_plain_file(file, handlers);
}

void for_each_elf(const std::string& path, bool folders, const InputHandlers& handlers) {
  for_each_file({path}, folders, handlers.walk,
                [&](const InputFile& file) { for_each_elf_of(file, handlers); },
                handlers.on_error);
}

}  // namespace reprobe
