#include "libprobe/notes/report.hpp"

#include <fmt/format.h>

#include <utility>

#include "libprobe/notes/rules.hpp"

namespace reprobe {

Finding* NoteReport::add(std::string_view rule, Severity severity, std::string message,
                         std::vector<std::string> evidence) {
  const NoteRule& known = note_rule(rule);
  if (++count_[known.name] > kPerRule) return nullptr;
  Finding finding;
  finding.rule = known.name;
  finding.severity = severity;
  finding.message = std::move(message);
  finding.evidence.emplace_back(known.breaks);
  for (std::string& line : evidence) finding.evidence.push_back(std::move(line));
  finding.hint = known.hint;
  into_.push_back(std::move(finding));
  return &into_.back();
}

void NoteReport::at(std::string_view rule, Severity severity, FileOffset where, std::string message,
                    std::vector<std::string> evidence) {
  Finding* finding = add(rule, severity, std::move(message), std::move(evidence));
  if (finding != nullptr) finding->note_offset = where.value;
}

void NoteReport::note(std::string_view rule, Severity severity, const Note& note,
                      std::string message, std::vector<std::string> evidence) {
  Finding* finding = add(rule, severity, std::move(message), std::move(evidence));
  if (finding == nullptr) return;
  finding->note_offset = note.file_offset.value;
  finding->provider = note.provider;
  finding->name = note.name;
  if (linked_) finding->site = note.location.value;
}

void NoteReport::finish() {
  for (const auto& [rule, count] : count_) {
    if (count <= kPerRule) continue;
    Finding finding;
    finding.rule = rule;
    finding.severity = note_rule(rule).severity;
    finding.message = fmt::format("{} more findings of this rule; expected none, found {} in all",
                                  count - kPerRule, count);
    finding.hint = note_rule(rule).hint;
    into_.push_back(std::move(finding));
  }
}

std::string shown_text(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  std::string out = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u >= 0x7f || c == '"' || c == '\\') {
      out += fmt::format("\\x{:02x}", u);
    } else {
      out += c;
    }
  }
  out += text.size() > kLongest ? "...\"" : "\"";
  return out;
}

}  // namespace reprobe
