// What the user sees besides results: errors, decisions (-v), progress, colour.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/error.hpp"

namespace reprobe {

enum class ColorMode { automatic, always, never };

enum class Style { bold, red, yellow, cyan };

class Terminal {
 public:
  Terminal(ColorMode mode, bool quiet, bool verbose);

  // `text` in a style where the stream takes colour, else as it is.
  [[nodiscard]] std::string out(Style style, std::string_view text) const;

  // "reprobe: error: FILE: [where] what" and its hint, on stderr.
  void error(std::string_view path, const Error& error) const;
  // "reprobe: warning: ...", not with -q.
  void warning(std::string_view text) const;
  // What was done, on stderr, not with -q.
  void info(std::string_view text) const;
  // A decision and its reason, on stderr, with -v only.
  void detail(std::string_view text) const;
  // One line on a terminal's stderr that the next one overwrites; "" clears it. Of a path that does
  // not fit the width, its end.
  void progress(std::string_view text, std::string_view path = "") const;

 private:
  [[nodiscard]] std::string err(Style style, std::string_view text) const;

  bool color_out_;
  bool color_err_;
  bool show_progress_;
  mutable bool progress_is_shown_{};
  bool quiet_;
  bool verbose_;
};

// Control characters, and bytes that are no UTF-8, as \xNN: names come from hostile files and must
// not drive the terminal.
[[nodiscard]] std::string printable(std::string_view text);

// What to say where -p picks no probe.
[[nodiscard]] std::string no_probe_fits(const std::vector<std::string>& patterns);

}  // namespace reprobe
