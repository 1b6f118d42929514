// The rules note-*: what can be wrong with .note.stapsdt as bytes, and which tracer loses probes
// by it. The names are stable; the documentation is made from note_rules().
// What each tracer accepts was read in its source or tried with it: docs/consumers.md.
#pragma once

#include <span>
#include <string_view>

#include "libprobe/finding.hpp"

namespace reprobe {

namespace rule {
// About a section.
inline constexpr std::string_view note_align = "note-align";
inline constexpr std::string_view note_alloc = "note-alloc";
inline constexpr std::string_view note_sections = "note-sections";
inline constexpr std::string_view note_section_type = "note-section-type";
inline constexpr std::string_view note_unreadable = "note-unreadable";
inline constexpr std::string_view note_truncated = "note-truncated";
// About one note.
inline constexpr std::string_view note_foreign = "note-foreign";
inline constexpr std::string_view note_namesz = "note-namesz";
inline constexpr std::string_view note_type = "note-type";
inline constexpr std::string_view note_short = "note-short";
inline constexpr std::string_view note_word = "note-word";
inline constexpr std::string_view note_strings = "note-strings";
inline constexpr std::string_view note_name = "note-name";
inline constexpr std::string_view note_args_nul = "note-args-nul";
inline constexpr std::string_view note_descsz = "note-descsz";
inline constexpr std::string_view note_padding = "note-padding";
inline constexpr std::string_view note_gap = "note-gap";
inline constexpr std::string_view note_reloc = "note-reloc";
}  // namespace rule

struct NoteRule {
  std::string_view name;
  Severity severity;        // the highest one it is reported with
  std::string_view what;    // what is wrong, as a half sentence
  std::string_view breaks;  // who loses probes by it
  std::string_view hint;
};

[[nodiscard]] std::span<const NoteRule> note_rules();

// The rule of that name, which must be one of those above.
[[nodiscard]] const NoteRule& note_rule(std::string_view name);

}  // namespace reprobe
