#include "libprobe/notes/rules.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace reprobe {
namespace {

constexpr std::string_view kFix = "run `reprobe fix`";
constexpr std::string_view kRelink = "link the file again; these bytes cannot be repaired";
constexpr std::string_view kRecompile = "compile the object again with an unmodified sys/sdt.h";

constexpr std::array kRules{
    NoteRule{
        rule::note_align, Severity::error,
        "sh_addralign of the section is not 4, or is not what its notes are laid out for",
        "readelf, eu-readelf, gdb, perf and bcc pad by sh_addralign: where the notes are laid out "
        "otherwise they lose those behind the first; BOLT reads a layout of 4 only",
        kFix},
    NoteRule{rule::note_alloc, Severity::error, "the section has SHF_ALLOC",
             "perf and systemtap skip the whole section; gdb warns", kFix},
    NoteRule{rule::note_sections, Severity::error,
             "a linked file has more than one .note.stapsdt section",
             "libbpf, perf and LTTng read the first only", kFix},
    NoteRule{rule::note_section_type, Severity::error, "the section's type is not SHT_NOTE",
             "no tracer reads it", kFix},
    NoteRule{rule::note_unreadable, Severity::error,
             "the section's bytes are not there to be read: outside the file, compressed, or "
             "shared with another note section",
             "no tracer reads it", kRelink},
    NoteRule{rule::note_truncated, Severity::error, "a note runs past the end of the section",
             "every tracer loses it and what follows", kRelink},
    NoteRule{rule::note_foreign, Severity::error,
             "a note in the section belongs to another owner than \"stapsdt\"",
             "libbpf refuses every attach to the file", kFix},
    NoteRule{rule::note_namesz, Severity::error, "namesz of a stapsdt note is not 8",
             "gdb, perf and bcc skip the note", kFix},
    NoteRule{rule::note_type, Severity::error, "the type of a stapsdt note is not 3",
             "perf stops reading there; libbpf refuses every attach to the file; gdb, eu-readelf, "
             "systemtap and bcc skip the note",
             kFix},
    NoteRule{rule::note_short, Severity::error,
             "the descriptor is too short for three addresses and three strings",
             "libbpf refuses every attach to the file; perf lists no probe of it; the others skip "
             "the note",
             kRecompile},
    NoteRule{rule::note_word, Severity::error,
             "the descriptor's addresses have the size of the other ELF class",
             "every tracer reads a wrong note or none", kRecompile},
    NoteRule{rule::note_strings, Severity::error, "the provider's or the name's NUL is missing",
             "libbpf refuses every attach to the file; the others skip the note", kRecompile},
    NoteRule{rule::note_name, Severity::error, "the provider or the name is empty",
             "an empty name makes libbpf refuse every attach to the file and perf list no probe of "
             "it",
             kRecompile},
    NoteRule{rule::note_args_nul, Severity::error, "the arguments' NUL is missing",
             "gdb, systemtap, eu-readelf and bcc skip the note", kFix},
    NoteRule{rule::note_descsz, Severity::error, "the descriptor goes on behind the arguments' NUL",
             "gdb, systemtap, eu-readelf and bcc skip the note", kFix},
    NoteRule{
        rule::note_padding, Severity::error, "the padding behind a note is missing or is not zero",
        "without the last note's padding in the section, readelf, perf and bcc lose that note; "
        "other bytes than zero break none",
        kFix},
    NoteRule{rule::note_gap, Severity::error, "bytes that belong to no note lie behind a note",
             "every tracer loses the notes behind them; at the section's end readelf warns", kFix},
    NoteRule{rule::note_reloc, Severity::warning,
             "a relocation of an object's note section cannot be applied",
             "the probe's address is unknown until the object is linked", kRecompile},
};

}  // namespace

std::span<const NoteRule> note_rules() { return kRules; }

const NoteRule& note_rule(std::string_view name) {
  const auto found = std::ranges::find(kRules, name, &NoteRule::name);
  // Kept in release builds: a caller's mistake must not become a read behind the table.
  if (found == kRules.end()) std::abort();
  return *found;
}

}  // namespace reprobe
