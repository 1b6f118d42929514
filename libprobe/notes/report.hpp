// How the note codec reports: findings with the rule's evidence and hint, and no more than a
// bounded number of each rule, so that a hostile section cannot fill the memory with them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libprobe/finding.hpp"
#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {

class NoteReport {
 public:
  // Findings of one rule that are kept; those above are counted and named in one last finding.
  static constexpr std::size_t kPerRule = 1000;

  // `linked`: a note's location is an address of the file and can be given as the site.
  NoteReport(std::vector<Finding>& into, bool linked) : into_(into), linked_(linked) {}

  // A finding about the section or about a note that could not be decoded.
  void at(std::string_view rule, Severity severity, FileOffset where, std::string message,
          std::vector<std::string> evidence = {});
  // A finding about a decoded note.
  void note(std::string_view rule, Severity severity, const Note& note, std::string message,
            std::vector<std::string> evidence = {});
  // Adds what was counted only. Call once, at the end.
  void finish();

 private:
  Finding* add(std::string_view rule, Severity severity, std::string message,
               std::vector<std::string> evidence);

  std::vector<Finding>& into_;
  bool linked_;
  std::map<std::string_view, std::size_t> count_;
};

// Text of the file in a message: quoted, cut at 40 characters, other than printable ASCII as \xNN.
[[nodiscard]] std::string shown_text(std::string_view text);

}  // namespace reprobe
