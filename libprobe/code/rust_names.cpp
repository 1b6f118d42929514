#include "libprobe/code/rust_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace reprobe {
namespace {

// Of a name made to be slow: references to earlier parts can repeat themselves.
constexpr std::size_t kLongest = 4096;
constexpr int kDeepestRustName = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

// A decimal number at the front, of at most four digits: no name is longer.
std::optional<std::size_t> take_number(std::string_view& text) {
  std::size_t digits = 0, value = 0;
  while (digits < text.size() && digits < 5 && is_digit(text[digits])) {
    value = value * 10 + static_cast<std::size_t>(text[digits++] - '0');
    if (text[0] == '0') break;  // of no length; what follows is another number
  }
  if (digits == 0 || digits == 5) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

// --- the older format: _ZN4core3fmt5Write9write_fmt17h0123456789abcdefE

// "$LT$", "$u20$" and ".." of one part; nothing for an escape that is not known.
std::optional<std::string> unescaped(std::string_view part) {
  constexpr std::array<std::pair<std::string_view, char>, 9> kEscapes{{{"SP", '@'},
                                                                       {"BP", '*'},
                                                                       {"RF", '&'},
                                                                       {"LT", '<'},
                                                                       {"GT", '>'},
                                                                       {"LP", '('},
                                                                       {"RP", ')'},
                                                                       {"C", ','},
                                                                       {"u20", ' '}}};
  std::string text;
  // "_$LT$": the underscore only keeps the part from beginning with '$'.
  if (part.starts_with("_$")) part.remove_prefix(1);
  while (!part.empty()) {
    if (part.starts_with("..")) {
      text += "::";
      part.remove_prefix(2);
    } else if (part.front() == '$') {
      const auto end = part.find('$', 1);
      if (end == std::string_view::npos) return std::nullopt;
      const std::string_view escape = part.substr(1, end - 1);
      const auto found =
          std::ranges::find(kEscapes, escape, [](const auto& known) { return known.first; });
      if (found != kEscapes.end()) {
        text += found->second;
      } else if (escape.size() == 3 && escape.front() == 'u' && is_hex(escape.substr(1))) {
        const int value = std::stoi(std::string(escape.substr(1)), nullptr, 16);
        if (value < 0x20 || value > 0x7e) return std::nullopt;
        text += static_cast<char>(value);
      } else {
        return std::nullopt;
      }
      part.remove_prefix(end + 1);
    } else {
      text += part.front();
      part.remove_prefix(1);
    }
  }
  return text;
}

std::optional<std::string> demangle_older(std::string_view name) {
  name.remove_prefix(3);
  std::string text;
  for (;;) {
    const auto length = take_number(name);
    if (!length || *length == 0 || *length >= name.size()) return std::nullopt;
    const std::string_view part = name.substr(0, *length);
    name.remove_prefix(*length);
    if (name.front() == 'E') {
      // The hash is what tells it from a name of C++. Copies have a suffix: ".llvm.123", ".cold".
      const bool hash = part.size() == 17 && part.front() == 'h' && is_hex(part.substr(1));
      const bool ends = name.size() == 1 || name[1] == '.';
      return hash && ends && !text.empty() ? std::optional(text) : std::nullopt;
    }
    const auto readable = unescaped(part);
    if (!readable) return std::nullopt;
    text += (text.empty() ? "" : "::") + *readable;
  }
}

// --- v0: _RNvCs1234_7mycrate3foo

class V0 {
 public:
  explicit V0(std::string_view name) : name_(name) {}

  std::optional<std::string> run() {
    if (!path(true) || failed_) return std::nullopt;
    // The crate that made this copy, which nobody wants to see.
    if (at_ < name_.size() && name_[at_] >= 'A' && name_[at_] <= 'Z') {
      silent_ = true;
      if (!path(false) || failed_) return std::nullopt;
    }
    if (at_ < name_.size() && name_[at_] != '.' && name_[at_] != '$') return std::nullopt;
    return text_;
  }

 private:
  [[nodiscard]] char peek() const { return at_ < name_.size() ? name_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  void print(std::string_view text) {
    if (silent_) return;
    if (text_.size() + text.size() > kLongest) failed_ = true;
    if (!failed_) text_ += text;
  }

  // "_" is 0, "0_" is 1, "Z_" is 62.
  std::optional<std::uint64_t> base62() {
    if (take('_')) return 0;
    std::uint64_t value = 0;
    for (int digits = 0; digits < 11; ++digits) {
      const char c = peek();
      std::uint64_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<std::uint64_t>(c - '0');
      } else if (c >= 'a' && c <= 'z') {
        digit = static_cast<std::uint64_t>(c - 'a') + 10;
      } else if (c >= 'A' && c <= 'Z') {
        digit = static_cast<std::uint64_t>(c - 'A') + 36;
      } else {
        return std::nullopt;
      }
      ++at_;
      value = value * 62 + digit;
      if (take('_')) return value + 1;
    }
    return std::nullopt;
  }

  // Of two things of one name in one place: 0 is the first.
  std::optional<std::uint64_t> disambiguator() {
    if (!take('s')) return 0;
    const auto value = base62();
    if (!value) return std::nullopt;
    return *value + 1;
  }

  std::optional<std::string_view> identifier() {
    if (peek() == 'u') return std::nullopt;  // Punycode
    std::string_view rest = name_.substr(at_);
    const std::size_t before = rest.size();
    const auto length = take_number(rest);
    if (!length) return std::nullopt;
    if (rest.starts_with('_')) rest.remove_prefix(1);
    if (*length > rest.size()) return std::nullopt;
    at_ += before - rest.size() + *length;
    return rest.substr(0, *length);
  }

  // A part that stands earlier in the name.
  template <typename Read>
  bool backref(Read read) {
    const std::size_t here = at_ - 1;
    const auto to = base62();
    if (!to || *to >= here || silent_) return to && *to < here;
    const std::size_t behind = std::exchange(at_, static_cast<std::size_t>(*to));
    const bool done = read();
    at_ = behind;
    return done;
  }

  // `value`: the path is one of a value, whose arguments stand behind "::".
  bool path(bool value) {
    if (++depth_ > kDeepestRustName || failed_) return false;
    const bool done = one_path(value);
    --depth_;
    return done;
  }

  bool one_path(bool value) {
    const char kind = peek();
    ++at_;
    switch (kind) {
      case 'C': {
        if (!disambiguator()) return false;
        const auto name = identifier();
        if (name) print(*name);
        return name.has_value();
      }
      case 'N':
        return nested(value);
      case 'M':
      case 'X':
        if (!impl_path()) return false;
        return of_type(kind == 'X');
      case 'Y':
        return of_type(true);
      case 'I': {
        if (!path(value)) return false;
        print(value ? "::<" : "<");
        if (!list([&] { return generic_argument(); })) return false;
        print(">");
        return true;
      }
      case 'B':
        return backref([&] { return path(value); });
      default:
        return false;
    }
  }

  bool nested(bool value) {
    const char space = peek();
    ++at_;
    if (!path(value)) return false;
    const auto number = disambiguator();
    const auto name = number ? identifier() : std::nullopt;
    if (!name) return false;
    if (space >= 'A' && space <= 'Z') {
      const std::string_view what = space == 'C' ? "closure" : space == 'S' ? "shim" : "";
      if (what.empty()) return false;
      print(name->empty() ? fmt::format("::{{{}#{}}}", what, *number)
                          : fmt::format("::{{{}:{}#{}}}", what, *name, *number));
    } else if (!name->empty()) {
      print("::");
      print(*name);
    }
    return true;
  }

  // Where an impl stands is not shown.
  bool impl_path() {
    if (!disambiguator()) return false;
    const bool before = std::exchange(silent_, true);
    const bool done = path(false);
    silent_ = before;
    return done;
  }

  // "<T>" and "<T as Trait>"
  bool of_type(bool trait) {
    print("<");
    if (!type()) return false;
    if (trait) {
      print(" as ");
      if (!path(false)) return false;
    }
    print(">");
    return true;
  }

  template <typename Read>
  bool list(Read read) {
    for (int count = 0; !take('E'); ++count) {
      if (at_ >= name_.size() || failed_) return false;
      if (count != 0) print(", ");
      if (!read()) return false;
    }
    return true;
  }

  bool generic_argument() {
    if (take('L')) return lifetime();
    if (take('K')) return constant();
    return type();
  }

  bool lifetime() {
    const auto index = base62();
    if (!index || *index != 0) return false;  // bound by a "for<'a>", which is not read
    print("'_");
    return true;
  }

  bool constant() {
    if (take('B')) return backref([&] { return constant(); });
    if (take('p')) {
      print("_");
      return true;
    }
    constexpr std::string_view kIntegers = "astlxnihmyojb";
    const char kind = peek();
    if (kIntegers.find(kind) == std::string_view::npos) return false;
    ++at_;
    const bool negative = take('n');
    const std::size_t end = name_.find('_', at_);
    if (end == std::string_view::npos || end - at_ > 16) return false;
    const std::string_view digits = name_.substr(at_, end - at_);
    if (!is_hex(digits)) return false;
    at_ = end + 1;
    std::uint64_t value = 0;
    for (const char c : digits) {
      value = value << 4 | static_cast<std::uint64_t>(is_digit(c) ? c - '0' : c - 'a' + 10);
    }
    if (kind == 'b') {
      if (value > 1) return false;
      print(value == 1 ? "true" : "false");
    } else {
      print(fmt::format("{}{}", negative ? "-" : "", value));
    }
    return true;
  }

  static std::string_view basic(char c) {
    constexpr std::array<std::pair<char, std::string_view>, 21> kTypes{
        {{'a', "i8"},   {'b', "bool"},  {'c', "char"},  {'d', "f64"}, {'e', "str"}, {'f', "f32"},
         {'h', "u8"},   {'i', "isize"}, {'j', "usize"}, {'l', "i32"}, {'m', "u32"}, {'n', "i128"},
         {'o', "u128"}, {'s', "i16"},   {'t', "u16"},   {'u', "()"},  {'v', "..."}, {'x', "i64"},
         {'y', "u64"},  {'z', "!"},     {'p', "_"}}};
    const auto found = std::ranges::find(kTypes, c, [](const auto& known) { return known.first; });
    return found == kTypes.end() ? std::string_view{} : found->second;
  }

  bool type() {
    if (++depth_ > kDeepestRustName || failed_) return false;
    const bool done = one_type();
    --depth_;
    return done;
  }

  bool one_type() {
    if (const std::string_view name = basic(peek()); !name.empty()) {
      ++at_;
      print(name);
      return true;
    }
    const char kind = peek();
    switch (kind) {
      case 'R':
      case 'Q':
      case 'P':
      case 'O':
        ++at_;
        print(kind == 'R' ? "&" : kind == 'Q' ? "&mut " : kind == 'P' ? "*const " : "*mut ");
        if ((kind == 'R' || kind == 'Q') && take('L') && base62() != std::uint64_t{0}) return false;
        return type();
      case 'A':
      case 'S':
        ++at_;
        print("[");
        if (!type()) return false;
        if (kind == 'A') {
          print("; ");
          if (!constant()) return false;
        }
        print("]");
        return true;
      case 'T': {
        ++at_;
        print("(");
        std::size_t count = 0;
        if (!list([&] { return ++count, type(); })) return false;
        print(count == 1 ? ",)" : ")");
        return true;
      }
      case 'B':
        ++at_;
        return backref([&] { return type(); });
      case 'F':
      case 'D':
        return false;
      default:
        return path(false);
    }
  }

  std::string_view name_;
  std::size_t at_{};
  std::string text_;
  bool silent_{}, failed_{};
  int depth_{};
};

}  // namespace

std::optional<std::string> demangle_rust(std::string_view name) {
  if (name.starts_with("_ZN")) return demangle_older(name);
  if (name.starts_with("_R")) return V0(name.substr(2)).run();
  return std::nullopt;
}

}  // namespace reprobe
