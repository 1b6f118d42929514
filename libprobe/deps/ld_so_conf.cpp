#include "libprobe/deps/ld_so_conf.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlanks = " \t\r\f\v";

std::string_view trimmed(std::string_view text) {
  const std::size_t start = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(start, text.find_last_not_of(kBlanks) + 1 - start);
}

// The paths that fit a glob, sorted as glob(3) does. Paths of the system under `root`.
std::vector<fs::path> matches(const fs::path& pattern, const Root& root) {
  std::vector<fs::path> found{""};
  for (const fs::path& part : pattern) {
    std::vector<fs::path> next;
    const bool plain = part.string().find_first_of("*?[") == std::string::npos;
    for (const fs::path& folder : found) {
      if (plain) {
        next.push_back(folder / part);
        continue;
      }
      std::error_code failure;
      for (fs::directory_iterator it(root.place(folder), failure), end; !failure && it != end;
           it.increment(failure)) {
        const fs::path name = it->path().filename();
        if (fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) next.push_back(folder / name);
      }
    }
    found = std::move(next);
  }
  std::ranges::sort(found);
  return found;
}

class ConfReader {
 public:
  explicit ConfReader(const Root& root) : root_(root) {}

  std::vector<fs::path> read(const fs::path& file) {
    todo_.push_back({"", file});
    while (!todo_.empty()) {
      const Item item = std::move(todo_.back());
      todo_.pop_back();
      if (item.line.empty()) {
        push_lines(item.file);
      } else {
        read_line(item.line, item.file);
      }
    }
    return std::move(folders_);
  }

 private:
  struct Item {
    std::string line;  // "": the whole file
    fs::path file;
  };

  // What an included file says comes before the next line: a stack, and no recursion.
  void push_lines(const fs::path& file) {
    const fs::path place = root_.place(file);
    if (!read_.insert(place).second) return;
    const auto source = map_file(place);
    if (!source) return;
    const auto bytes = (*source)->slice({}, Size{(*source)->size()}, "ld.so.conf");
    if (!bytes) return;
    std::string_view text = as_text(*bytes);
    const std::size_t first = todo_.size();
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const auto line = trimmed(text.substr(0, end).substr(0, text.substr(0, end).find('#')));
      if (!line.empty()) todo_.push_back({std::string(line), file});
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    std::reverse(todo_.begin() + static_cast<std::ptrdiff_t>(first), todo_.end());
  }

  void read_line(std::string_view text, const fs::path& file) {
    const std::size_t blank = std::min(text.find_first_of(kBlanks), text.size());
    const std::string_view word = text.substr(0, blank);
    if (word == "include" && blank != text.size()) return include(text.substr(blank), file);
    if (word == "hwcap" && blank != text.size()) return;  // ignored by ldconfig too
    // "folder=libc5": the kind of libraries behind it, which nothing has needed for long.
    std::string_view folder = trimmed(text.substr(0, text.find('=')));
    while (folder.size() > 1 && folder.ends_with('/')) folder.remove_suffix(1);
    if (folder.starts_with('/') && seen_.insert(std::string(folder)).second) {
      folders_.emplace_back(folder);
    }
  }

  void include(std::string_view patterns, const fs::path& from) {
    std::vector<fs::path> files;
    while (!(patterns = trimmed(patterns)).empty()) {
      const std::size_t end = std::min(patterns.find_first_of(kBlanks), patterns.size());
      // operator/ gives the right side alone where it is absolute.
      const auto found = matches(from.parent_path() / patterns.substr(0, end), root_);
      files.insert(files.end(), found.begin(), found.end());
      patterns.remove_prefix(end);
    }
    for (auto file = files.rbegin(); file != files.rend(); ++file) todo_.push_back({"", *file});
  }

  const Root& root_;
  std::vector<Item> todo_;
  std::set<fs::path> read_;
  std::set<std::string> seen_;
  std::vector<fs::path> folders_;
};

}  // namespace

std::vector<fs::path> configured_folders(const Root& root) {
  return ConfReader(root).read("/etc/ld.so.conf");
}

}  // namespace reprobe
