#include "tool/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace reprobe {
namespace {

// A terminal that understands escape sequences.
bool is_capable(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

bool wants_color(ColorMode mode, int fd) {
  if (mode != ColorMode::automatic) return mode == ColorMode::always;
  const char* no_color = std::getenv("NO_COLOR");  // https://no-color.org: set and not empty
  return (no_color == nullptr || *no_color == '\0') && is_capable(fd);
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

// Unlike fmt::print() it does not throw: a stderr that is full must not stop a rewrite halfway.
void say(const std::string& text) { std::fputs(text.c_str(), stderr); }

// Bytes of the character that `text` starts with, 0 where it must not be printed as it is: not
// UTF-8 (RFC 3629, section 4), or a control character, of which U+0080 to U+009F drive terminals
// as ESC does.
std::size_t printable_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return first < 0x20 || first == 0x7f ? 0 : 1;
  const std::size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 0 || first > 0xf4) return 0;
  std::uint32_t character = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    character = character << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0xa0, 0x800, 0x10000};
  const bool surrogate = character >= 0xd800 && character < 0xe000;
  return character < kSmallest.at(length) || surrogate || character > 0x10ffff ? 0 : length;
}

// Columns of the terminal that progress is shown on, whatever stdout is.
std::size_t error_width() {
  struct winsize size {};
  constexpr std::size_t kUsual = 80;
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

// At most two columns a character; 1 for ASCII.
std::size_t columns(std::string_view character) { return character.size() == 1 ? 1 : 2; }

// One column stays free: some terminals go to the next line with the last.
std::string progress_line(std::string_view text, std::string_view path, std::size_t width) {
  const std::size_t room = width - 1;
  std::string line;
  const std::string shown = printable(text);
  std::string_view rest = shown;
  std::size_t used = 0;
  for (std::size_t length = 0; !rest.empty(); rest.remove_prefix(length)) {
    length = printable_length(rest);
    const auto character = rest.substr(0, length);
    if (used + columns(character) > room) return line;
    used += columns(character);
    line += character;
  }
  const std::string name = printable(path);
  std::vector<std::string_view> characters;
  std::size_t wanted = 0;
  for (std::string_view left = name; !left.empty();) {
    const std::size_t length = printable_length(left);
    characters.push_back(left.substr(0, length));
    wanted += columns(characters.back());
    left.remove_prefix(length);
  }
  constexpr std::string_view kCut = "...";
  const bool cut = used + wanted > room;
  if (cut && used + kCut.size() > room) return line;
  auto first = characters.begin();
  if (cut) {
    line += kCut;
    for (; first != characters.end() && used + kCut.size() + wanted > room; ++first)
      wanted -= columns(*first);
  }
  for (; first != characters.end(); ++first) line += *first;
  return line;
}

}  // namespace

Terminal::Terminal(ColorMode mode, bool quiet, bool verbose)
    : color_out_(wants_color(mode, STDOUT_FILENO)),
      color_err_(wants_color(mode, STDERR_FILENO)),
      show_progress_(is_capable(STDERR_FILENO) && !quiet),
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
  say(fmt::format("{}{}\n", line, printable(error.message)));
  if (!error.hint.empty()) {
    say(fmt::format("{}: {}\n", err(Style::cyan, "hint"), printable(error.hint)));
  }
}

void Terminal::warning(std::string_view text) const {
  if (quiet_) return;
  progress("");
  say(fmt::format("reprobe: {}: {}\n", err(Style::yellow, "warning"), printable(text)));
}

void Terminal::info(std::string_view text) const {
  if (quiet_) return;
  progress("");
  say(fmt::format("reprobe: {}\n", printable(text)));
}

void Terminal::detail(std::string_view text) const {
  if (!verbose_) return;
  progress("");
  say(fmt::format("reprobe: {}\n", printable(text)));
}

void Terminal::progress(std::string_view text, std::string_view path) const {
  if (!show_progress_ || (text.empty() && !progress_is_shown_)) return;
  progress_is_shown_ = !text.empty();
  say(fmt::format("\r\x1b[K{}", progress_line(text, path, error_width())));
  std::fflush(stderr);
}

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = printable_length(text);
    if (length == 0) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

std::string no_probe_fits(const std::vector<std::string>& patterns) {
  std::string all;
  for (const std::string& pattern : patterns) all += (all.empty() ? "" : ", ") + pattern;
  return "no probe fits -p " + all;
}

}  // namespace reprobe
