#include "libprobe/deps/root.hpp"

#include <algorithm>
#include <system_error>
#include <vector>

namespace reprobe {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as the kernel: MAXSYMLINKS in include/linux/namei.h

// The components that are left to follow, the next one last.
void push_parts(std::vector<fs::path>& todo, const fs::path& path) {
  const std::vector<fs::path> parts(path.begin(), path.end());
  todo.insert(todo.end(), parts.rbegin(), parts.rend());
}

}  // namespace

Root::Root(const fs::path& folder) {
  std::error_code failure;
  const fs::path real = fs::weakly_canonical(folder, failure);
  if (!failure && real != "/" && !folder.empty()) folder_ = real;
}

fs::path Root::place(const fs::path& path) const {
  if (folder_.empty()) return path;
  fs::path done;  // below folder_, without links
  std::vector<fs::path> todo;
  push_parts(todo, path);
  for (int links = 0; !todo.empty();) {
    const fs::path part = std::move(todo.back());
    todo.pop_back();
    if (part.is_absolute()) done.clear();
    if (part.is_absolute() || part.empty() || part == ".") continue;
    if (part == "..") {
      done = done.parent_path();
      continue;
    }
    std::error_code not_a_link;
    const fs::path target = fs::read_symlink(folder_ / done / part, not_a_link);
    if (not_a_link || ++links > kMaxLinks) {
      done /= part;
    } else {
      push_parts(todo, target);
    }
  }
  return folder_ / done;
}

fs::path Root::place_real(const fs::path& path) const {
  if (folder_.empty()) return path;
  const fs::path normal = path.lexically_normal();
  const auto [end, rest] = std::ranges::mismatch(folder_, normal);
  if (end != folder_.end()) return path;
  fs::path inside = "/";
  std::for_each(rest, normal.end(), [&](const fs::path& part) { inside /= part; });
  return place(inside);
}

}  // namespace reprobe
