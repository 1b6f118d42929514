#include "tool/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace reprobe {
namespace {

bool wants_color(ColorMode mode, int fd) {
  if (mode != ColorMode::automatic) return mode == ColorMode::always;
  const char* no_color = std::getenv("NO_COLOR");  // https://no-color.org: set and not empty
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

std::string styled(Style style, std::string_view text) {
  const char* code = "1";
  switch (style) {
    case Style::bold:
      code = "1";
      break;
    case Style::red:
      code = "1;31";
      break;
    case Style::yellow:
      code = "33";
      break;
    case Style::cyan:
      code = "36";
      break;
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace

Terminal::Terminal(ColorMode mode, bool quiet, bool verbose)
    : color_out_(wants_color(mode, STDOUT_FILENO)),
      color_err_(wants_color(mode, STDERR_FILENO)),
      show_progress_(isatty(STDERR_FILENO) == 1 && !quiet),
      quiet_(quiet),
      verbose_(verbose) {}

std::string Terminal::out(Style style, std::string_view text) const {
  return color_out_ ? styled(style, text) : std::string(text);
}

std::string Terminal::err(Style style, std::string_view text) const {
  return color_err_ ? styled(style, text) : std::string(text);
}

void Terminal::error(std::string_view path, const Error& error) const {
  progress("");
  std::string line = fmt::format("reprobe: {}: ", err(Style::red, "error"));
  if (!path.empty()) line += printable(path) + ": ";
  if (!error.where.empty()) line += fmt::format("[{}] ", printable(error.where));
  fmt::print(stderr, "{}{}\n", line, printable(error.message));
  if (!error.hint.empty()) {
    fmt::print(stderr, "{}: {}\n", err(Style::cyan, "hint"), printable(error.hint));
  }
}

void Terminal::warning(std::string_view text) const {
  if (quiet_) return;
  progress("");
  fmt::print(stderr, "reprobe: {}: {}\n", err(Style::yellow, "warning"), printable(text));
}

void Terminal::info(std::string_view text) const {
  if (quiet_) return;
  progress("");
  fmt::print(stderr, "reprobe: {}\n", printable(text));
}

void Terminal::detail(std::string_view text) const {
  if (!verbose_) return;
  progress("");
  fmt::print(stderr, "reprobe: {}\n", printable(text));
}

void Terminal::progress(std::string_view text) const {
  if (!show_progress_) return;
  fmt::print(stderr, "\r\x1b[K{}", printable(text));
  std::fflush(stderr);
}

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace reprobe
