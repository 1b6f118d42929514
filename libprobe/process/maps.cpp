#include "libprobe/process/maps.hpp"

#include <fmt/format.h>
#include <sys/sysmacros.h>

#include <charconv>
#include <optional>

namespace reprobe {
namespace {

constexpr std::string_view kDeleted = " (deleted)";

// The fields of a line, one after the other; once one is wrong, all that follow are.
class Fields {
 public:
  explicit Fields(std::string_view line) : rest_(line) {}

  std::uint64_t number(int base, char end) {
    std::uint64_t value = 0;
    const char* last = rest_.data() + rest_.size();
    const auto [next, error] = std::from_chars(rest_.data(), last, value, base);
    if (error != std::errc{} || next == last || *next != end) {
      good_ = good_ && error == std::errc{} && next == last && end == '\0';
      rest_ = {};
      return value;
    }
    rest_.remove_prefix(static_cast<std::size_t>(next - rest_.data()) + 1);
    return value;
  }
  std::string_view word(std::size_t size) {
    if (rest_.size() <= size || rest_[size] != ' ') {
      good_ = false;
      rest_ = {};
      return "-----";
    }
    const std::string_view result = rest_.substr(0, size);
    rest_.remove_prefix(size + 1);
    return result;
  }
  [[nodiscard]] std::string_view rest() const { return rest_; }
  [[nodiscard]] bool good() const { return good_; }

 private:
  std::string_view rest_;
  bool good_{true};
};

// show_map_vma() writes a line feed in a name as \012, so that a line stays a line.
std::string unescaped_path(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 4) == "\\012") {
      result += '\n';
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

// "start-end perms offset major:minor inode   path"
std::optional<Mapping> parse_line(std::string_view line) {
  Fields fields(line);
  Mapping mapping;
  mapping.start = fields.number(16, '-');
  mapping.end = fields.number(16, ' ');
  const std::string_view permissions = fields.word(4);
  mapping.writable = permissions[1] == 'w';
  mapping.executable = permissions[2] == 'x';
  mapping.offset = fields.number(16, ' ');
  const std::uint64_t major_number = fields.number(16, ':');
  const std::uint64_t minor_number = fields.number(16, ' ');
  mapping.device =
      makedev(static_cast<unsigned>(major_number), static_cast<unsigned>(minor_number));
  // Without a path the line ends with the inode, or with the blank behind it.
  const bool has_path = fields.rest().find(' ') != std::string_view::npos;
  mapping.inode = fields.number(10, has_path ? ' ' : '\0');
  if (!fields.good() || mapping.start > mapping.end) return std::nullopt;
  const std::string_view rest = fields.rest();
  const std::size_t begin = rest.find_first_not_of(' ');
  if (begin == std::string_view::npos) return mapping;
  std::string_view path = rest.substr(begin);
  mapping.written = path;
  if (says_deleted(path)) {
    mapping.deleted = true;
    path.remove_suffix(kDeleted.size());
  }
  mapping.path = unescaped_path(path);
  return mapping;
}

}  // namespace

bool says_deleted(std::string_view path) { return path.ends_with(kDeleted); }

std::string without_mark(std::string_view path) {
  return std::string(path.substr(0, path.size() - (says_deleted(path) ? kDeleted.size() : 0)));
}

std::vector<std::string> possible_paths(const Mapping& mapping) {
  std::vector<std::string> paths{mapping.written, unescaped_path(mapping.written)};
  if (mapping.deleted) {
    paths.push_back(without_mark(mapping.written));
    paths.push_back(mapping.path);
  }
  return paths;
}

Result<std::vector<Mapping>> parse_maps(std::string_view text) {
  std::vector<Mapping> result;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty()) continue;
    auto mapping = parse_line(line);
    if (!mapping) {
      return fail(ErrorCode::malformed, "maps", fmt::format("a line that is none: {}", line));
    }
    result.push_back(std::move(*mapping));
  }
  return result;
}

}  // namespace reprobe
