#include "tool/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "libprobe/elf/open_file.hpp"
#include "tool/archive.hpp"
#include "tool/elf_input.hpp"
#include "tool/thin_archive.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

// `named`: the user named the file, so that anything else than ELF or an archive is an error.
void visit_file(const std::string& path, bool named, const InputHandlers& handlers) {
  handlers.on_visit(path);
  auto source = handlers.keeps_sources ? map_file(path) : open_file(path);
  if (!source) return handlers.on_error(path, source.error());
  const Size head_size{std::min(kHeadSize, (*source)->size())};
  const auto head = (*source)->slice(FileOffset{0}, head_size, "the first bytes");
  if (!head) return handlers.on_error(path, head.error());
  const auto whole = [&] {
    return (*source)->slice(FileOffset{0}, Size{(*source)->size()}, "the archive");
  };
  // Its members are files of their own, which a walk through a folder meets anyway.
  if (named && is_thin_archive(*head)) {
    const auto all = whole();
    if (!all) return handlers.on_error(path, all.error());
    return for_each_thin_member(path, *all, handlers);
  }
  switch (file_kind(*head, path)) {
    case FileKind::elf:
      return handlers.on_elf(path, std::move(*source));
    case FileKind::archive: {
      const auto all = whole();
      if (!all) return handlers.on_error(path, all.error());
      return for_each_member(path, *all, handlers);
    }
    case FileKind::other:
      // The reader says what is wrong with it: empty, or which magic it has.
      if (named) handlers.on_elf(path, std::move(*source));
  }
}

void walk(const fs::path& folder, const InputHandlers& handlers) {
  std::vector<fs::path> todo{folder};
  while (!todo.empty()) {
    const fs::path here = std::move(todo.back());
    todo.pop_back();
    std::error_code failure;
    std::vector<fs::directory_entry> entries;
    for (fs::directory_iterator it(here, failure), end; !failure && it != end;
         it.increment(failure)) {
      entries.push_back(*it);
    }
    if (failure) {
      handlers.on_error(here.string(),
                        Error{ErrorCode::unreadable, "",
                              fmt::format("the folder cannot be read: {}", failure.message()), ""});
    }
    std::ranges::sort(entries, {}, [](const fs::directory_entry& e) { return e.path(); });
    std::vector<fs::path> folders;
    for (const fs::directory_entry& entry : entries) {
      const fs::file_status status = entry.symlink_status(failure);
      if (fs::is_directory(status)) folders.push_back(entry.path());
      if (fs::is_regular_file(status)) visit_file(entry.path().string(), false, handlers);
    }
    todo.insert(todo.end(), folders.rbegin(), folders.rend());
  }
}

}  // namespace

void for_each_elf(const std::string& path, bool folders, const InputHandlers& handlers) {
  std::error_code failure;
  if (folders && fs::is_directory(path, failure)) return walk(path, handlers);
  visit_file(path, true, handlers);
}

}  // namespace reprobe
