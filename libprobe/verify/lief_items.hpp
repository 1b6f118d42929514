// What the comparisons of LIEF's views have in common. Only the files lief_* and
// second_opinion_lief.cpp include LIEF. They use what LIEF 0.9 and the current releases both have:
// enumerations are compared as numbers because their names differ.
#pragma once

#include <fmt/format.h>

#include <LIEF/ELF.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libprobe/verify/second_opinion_lief.hpp"

namespace reprobe::second_reader {

namespace lief = LIEF::ELF;

// Of sections.
using NameSet = std::unordered_set<std::string>;

// Names come from files that may be hostile, and go to a terminal.
inline std::string printable(std::string_view text) {
  constexpr std::size_t kMaxName = 80;
  std::string out(text.substr(0, kMaxName));
  std::ranges::replace_if(
      out, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > kMaxName) out += "...";
  return out;
}

class Differences {
 public:
  void add(std::string line) {
    if (lines_.size() < kMaxDifferences) {
      lines_.push_back(std::move(line));
    } else {
      ++more_;
    }
  }
  std::vector<std::string> take() {
    if (more_ != 0) lines_.push_back(fmt::format("and {} more", more_));
    return std::move(lines_);
  }

 private:
  std::vector<std::string> lines_;
  std::size_t more_{};
};

struct Field {
  const char* name;
  std::uint64_t before;
  std::uint64_t after;
};

template <typename T>
std::uint64_t number(T value) {
  return static_cast<std::uint64_t>(value);
}

inline void compare_fields(const std::string& item, std::initializer_list<Field> fields,
                           Differences& out) {
  for (const Field& field : fields) {
    if (field.before == field.after) continue;
    out.add(fmt::format("{}: {} was {:#x}, is {:#x}", item, field.name, field.before, field.after));
  }
}

// LIEF's iterators differ between releases; all of them can be walked once.
template <typename Range>
auto items(Range&& range) {
  std::vector<std::remove_reference_t<decltype(*range.begin())>*> out;
  for (auto& item : range) out.push_back(&item);
  return out;
}

template <typename List>
std::size_t common(const char* what, const List& before, const List& after, Differences& out) {
  if (before.size() != after.size()) {
    out.add(fmt::format("{}: there were {}, there are {}", what, before.size(), after.size()));
  }
  return std::min(before.size(), after.size());
}

}  // namespace reprobe::second_reader
