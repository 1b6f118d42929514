#include "tool/tracer_script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>

namespace reprobe {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

// 3 of "arg3".
std::optional<unsigned> argument_index(std::string_view word) {
  if (!word.starts_with("arg") || word.size() == 3) return std::nullopt;
  unsigned index = 0;
  const auto [end, failure] = std::from_chars(word.data() + 3, word.data() + word.size(), index);
  if (failure != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return index;
}

// The grammar of bpftrace, as far as it says where probes and their actions begin and end
// (bpftrace's lexer.l and parser.yy; its manual, "Program Structure").
class ScriptReader {
 public:
  explicit ScriptReader(std::string_view text) : text_(text) {}

  Result<std::vector<ScriptClause>> run() {
    std::vector<ScriptClause> clauses;
    for (skip_blank(true); at_ < text_.size(); skip_blank(true)) {
      if (skip_declaration()) continue;
      ScriptClause clause;
      if (!read_probes(clause)) break;
      skip_blank(false);
      if (peek() == '/' && !read_predicate(clause)) break;
      skip_blank(false);
      if (peek() != '{') {
        give_up("expected { after the probes, found no action");
        break;
      }
      if (!read_block(&clause)) break;
      clauses.push_back(std::move(clause));
    }
    if (error_) return tl::unexpected(*error_);
    return clauses;
  }

 private:
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  [[nodiscard]] std::size_t line_of(std::size_t at) {
    // Asked in ascending order: each line is counted once.
    if (at < counted_) counted_ = 0, line_ = 1;
    line_ +=
        static_cast<std::size_t>(std::ranges::count(text_.substr(counted_, at - counted_), '\n'));
    counted_ = at;
    return line_;
  }

  bool give_up(std::string what) {
    if (!error_)
      error_ =
          Error{ErrorCode::malformed, fmt::format("line {}", line_of(at_)), std::move(what), ""};
    return false;
  }

  void skip_line() {
    const std::size_t end = text_.find('\n', at_);
    at_ = end == std::string_view::npos ? text_.size() : end + 1;
  }

  // `lines`: also what the preprocessor and the shell read, from a # to the end of the line.
  void skip_blank(bool lines) {
    while (at_ < text_.size()) {
      const char c = peek();
      if (kBlanks.find(c) != std::string_view::npos) {
        ++at_;
      } else if (!skip_comment()) {
        if (!lines || c != '#') return;
        while (at_ < text_.size() && text_.substr(at_, text_.find('\n', at_) - at_).ends_with('\\'))
          skip_line();
        skip_line();
      }
    }
  }

  bool skip_comment() {
    if (peek() != '/') return false;
    if (peek(1) == '/') {
      skip_line();
      return true;
    }
    if (peek(1) != '*') return false;
    const std::size_t end = text_.find("*/", at_ + 2);
    if (end == std::string_view::npos) give_up("a comment does not end");
    at_ = end == std::string_view::npos ? text_.size() : end + 2;
    return true;
  }

  // The text between quotation marks.
  std::optional<std::string> read_string() {
    std::string result;
    for (std::size_t i = at_ + 1; i < text_.size(); ++i) {
      if (text_[i] == '"') {
        at_ = i + 1;
        return result;
      }
      if (text_[i] == '\\' && i + 1 < text_.size()) ++i;
      result += text_[i];
    }
    give_up("a string does not end");
    at_ = text_.size();
    return std::nullopt;
  }

  [[nodiscard]] std::string_view word_here() const {
    std::size_t end = at_;
    while (end < text_.size() && is_word(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }

  // Types, configuration, functions: whatever stands between clauses and is none.
  bool skip_declaration() {
    const std::string_view word = word_here();
    const char behind = peek(word.size());
    if (behind == ':' || behind == ',') return false;
    if (is_one_of(word, {"import", "let", "typedef"})) {
      const std::size_t end = text_.find(';', at_);
      at_ = end == std::string_view::npos ? text_.size() : end + 1;
      return true;
    }
    if (!is_one_of(word, {"struct", "union", "enum", "config", "macro", "fn"})) return false;
    const std::size_t brace = text_.find_first_of("{;", at_);
    if (brace == std::string_view::npos) {
      give_up("expected { after " + std::string(word));
      at_ = text_.size();
      return true;
    }
    at_ = brace;
    if (peek() == '{' && !read_block(nullptr)) at_ = text_.size();
    skip_blank(false);
    if (peek() == ';') ++at_;
    return true;
  }

  bool read_probes(ScriptClause& clause) {
    for (;;) {
      skip_blank(false);
      const std::size_t start = at_;
      std::vector<std::string> parts(1);
      if (!read_parts(parts)) return false;
      if (at_ == start) return give_up("expected a probe, found something else");
      if (is_one_of(parts.front(), {"usdt", "U"})) {
        ScriptProbe probe;
        probe.text = text_.substr(start, at_ - start);
        probe.line = line_of(start);
        if (parts.size() != 3 && parts.size() != 4)
          return give_up(probe.text + ": expected usdt:PATH:PROVIDER:NAME");
        probe.path = parts[1];
        probe.provider = parts.size() == 4 && !parts[2].empty() ? parts[2] : "*";
        probe.name = parts.back();
        clause.probes.push_back(std::move(probe));
      }
      skip_blank(false);
      if (peek() != ',') return true;
      ++at_;
    }
  }

  // "usdt:/usr/bin/app:provider:name". A / belongs to the path, elsewhere it begins the predicate.
  bool read_parts(std::vector<std::string>& parts) {
    while (at_ < text_.size()) {
      const char c = peek();
      if (kBlanks.find(c) != std::string_view::npos || c == ',' || c == '{') return true;
      const bool in_path =
          parts.size() == 2 && is_one_of(parts.front(), {"usdt", "U", "uprobe", "u", "uretprobe",
                                                         "ur", "watchpoint", "w"});
      if (c == '/' && !in_path) return true;
      if (c == '"') {
        const auto text = read_string();
        if (!text) return false;
        parts.back() += *text;
        continue;
      }
      if (c == ':') {
        parts.emplace_back();
      } else {
        parts.back() += c;
      }
      ++at_;
    }
    return true;
  }

  // Ends with the / before the action: others divide.
  bool read_predicate(ScriptClause& clause) {
    for (++at_; at_ < text_.size();) {
      if (peek() != '/') {
        if (!read_code(clause)) return false;
        continue;
      }
      if (skip_comment()) continue;
      ++at_;
      const std::size_t here = at_;
      skip_blank(false);
      if (peek() == '{') return true;
      at_ = here;
    }
    return give_up("a predicate does not end");
  }

  // From { to its }.
  bool read_block(ScriptClause* clause) {
    ScriptClause unused;
    ScriptClause& into = clause != nullptr ? *clause : unused;
    std::size_t depth = 0;
    while (at_ < text_.size()) {
      if (skip_comment()) continue;
      if (peek() == '{') ++depth;
      if (peek() == '}' && --depth == 0) {
        ++at_;
        return true;
      }
      if (!read_code(into)) return false;
    }
    return give_up("an action does not end");
  }

  // One string, word or other character.
  bool read_code(ScriptClause& clause) {
    if (peek() == '"') return read_string().has_value();
    if (!is_word(peek())) {
      ++at_;
      return true;
    }
    const std::string_view word = word_here();
    const char before = at_ == 0 ? ' ' : text_[at_ - 1];
    // Maps, variables and fields may have any name.
    const bool is_builtin = std::string_view("@$.>").find(before) == std::string_view::npos;
    if (const auto index = argument_index(word); index && is_builtin)
      clause.arguments.push_back({*index, line_of(at_), is_text(at_, at_ + word.size())});
    at_ += word.size();
    return true;
  }

  // Is it all of the first argument of str()? Casts may stand before it.
  [[nodiscard]] bool is_text(std::size_t from, std::size_t to) const {
    const std::size_t behind = text_.find_first_not_of(kBlanks, to);
    if (behind == std::string_view::npos || (text_[behind] != ')' && text_[behind] != ','))
      return false;
    std::string_view before = trimmed(text_.substr(0, from));
    while (before.ends_with(')')) {
      const std::size_t open = before.rfind('(');
      if (open == std::string_view::npos) return false;
      before = trimmed(before.substr(0, open));
    }
    if (!before.ends_with('(')) return false;
    before = trimmed(before.substr(0, before.size() - 1));
    std::size_t start = before.size();
    while (start > 0 && is_word(before[start - 1])) --start;
    return before.substr(start) == "str";
  }

  static std::string_view trimmed(std::string_view text) {
    const std::size_t last = text.find_last_not_of(kBlanks);
    return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
  }

  std::string_view text_;
  std::size_t at_{};
  std::size_t counted_{};  // up to here lines are counted
  std::size_t line_{1};
  std::optional<Error> error_;
};

// perf calls the events that it makes of probes sdt_PROVIDER:NAME, and takes %PROVIDER:NAME.
std::vector<ScriptClause> read_list(std::string_view text) {
  std::vector<ScriptClause> clauses;
  std::size_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view entry = text.substr(0, std::min(end, text.find('#')));
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t first = entry.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) continue;
    entry = entry.substr(first, entry.find_last_not_of(kBlanks) - first + 1);
    ScriptProbe probe;
    probe.text = entry;
    probe.line = line;
    for (const std::string_view prefix : {"%", "sdt_"}) {
      if (entry.starts_with(prefix)) entry.remove_prefix(prefix.size());
    }
    const std::size_t colon = entry.find(':');
    probe.provider = colon == std::string_view::npos ? "*" : std::string(entry.substr(0, colon));
    probe.name = colon == std::string_view::npos ? entry : entry.substr(colon + 1);
    clauses.push_back({{std::move(probe)}, {}});
  }
  return clauses;
}

}  // namespace

Result<std::vector<ScriptClause>> read_tracer_script(std::string_view text) {
  if (text.find('{') == std::string_view::npos) return read_list(text);
  return ScriptReader(text).run();
}

}  // namespace reprobe
