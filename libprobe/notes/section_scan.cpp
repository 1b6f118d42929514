#include "libprobe/notes/section_scan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "libprobe/notes/descriptor.hpp"
#include "libprobe/notes/rules.hpp"
#include "libprobe/notes/walk.hpp"

namespace reprobe {
namespace {

constexpr std::uint32_t kNamesz = kStapsdtOwner.size() + 1;

class SectionScanner {
 public:
  SectionScanner(const NoteSection& section, NoteScan& into, NoteReport& report)
      : section_(section), into_(into), report_(report), word_(section.is64 ? 8 : 4) {}

  std::vector<std::uint64_t> run() {
    const NoteLayout layout = find_layout(section_.bytes, section_.order);
    check_alignment(layout);
    std::uint64_t at = 0;
    while (at < section_.bytes.size()) {
      const auto raw = read_note(section_.bytes, at, layout);
      if (!raw) {
        stop(at);
        break;
      }
      one(*raw);
      at = raw->next;
    }
    return std::move(descriptors_);
  }

 private:
  [[nodiscard]] FileOffset file_offset(std::uint64_t at) const {
    return FileOffset{section_.offset.value + at};
  }
  [[nodiscard]] ByteView descriptor(const RawNote& raw) const {
    return section_.bytes.subspan(raw.desc, raw.descsz);
  }

  // libelf pads by 8 where sh_addralign is 8 and by 4 otherwise; BFD knows 4 (and less) and 8.
  void check_alignment(const NoteLayout& layout) {
    const std::uint64_t align = section_.addralign;
    if (section_.bytes.empty() || (align == 4 && layout.align == 4)) return;
    const unsigned read_as = align == 8 ? 8 : 4;
    const bool harmless = read_as == layout.align && align <= 8;
    report_.at(
        rule::note_align, harmless ? Severity::warning : Severity::error, section_.offset,
        fmt::format("sh_addralign of section {}; expected 4, found {}", section_.index, align),
        {fmt::format("the notes in it are laid out for {}", layout.align),
         harmless ? "readelf, gdb, perf and bcc still read it" : "readers lose notes here"});
  }

  void stop(std::uint64_t at) {
    const std::uint64_t left = section_.bytes.size() - at;
    into_.stopped.emplace_back(section_.index, at);
    std::string found = fmt::format("{} bytes", left);
    if (left >= kNoteHeader) {
      found = fmt::format("namesz {:#x}, descsz {:#x} and {} bytes",
                          load_uint(section_.bytes, at, 4, section_.order),
                          load_uint(section_.bytes, at + 4, 4, section_.order), left);
    }
    report_.at(rule::note_truncated, Severity::error, file_offset(at),
               fmt::format("note at offset {:#x} of section {}; expected a whole note before the "
                           "section's end, found {}",
                           at, section_.index, found),
               {"nothing behind this offset could be read"});
  }

  void one(const RawNote& raw) {
    if (!is_stapsdt(section_.bytes, raw)) {
      foreign(raw);
      // With what stands behind a NUL: that may be all that differs.
      std::string_view owner = as_text(section_.bytes.subspan(raw.name, raw.namesz));
      while (owner.ends_with('\0')) owner.remove_suffix(1);
      report_.at(
          rule::note_foreign, Severity::error, file_offset(raw.at),
          fmt::format("owner of the note; expected \"stapsdt\", found {}", shown_text(owner)),
          {fmt::format("namesz {}, type {}", raw.namesz, raw.type)});
    } else if (auto decoded = decode_descriptor(descriptor(raw), word_, section_.order);
               decoded && !other_word(raw)) {
      probe(raw, std::move(*decoded));
    } else {
      undecoded(raw);
    }
    check_gap(raw);
  }

  // Was the descriptor written with the addresses of the other class? Asked only where the
  // class's own size does not give a faultless one.
  [[nodiscard]] bool other_word(const RawNote& raw) const {
    return !faultless_descriptor(descriptor(raw), word_, section_.order) &&
           faultless_descriptor(descriptor(raw), 12 - word_, section_.order);
  }

  const ForeignNote& foreign(const RawNote& raw) {
    std::string_view owner = as_text(section_.bytes.subspan(raw.name, raw.namesz));
    return into_.foreign.emplace_back(
        ForeignNote{.section = section_.index,
                    .offset = raw.at,
                    .size = raw.next - raw.at,
                    .file_offset = file_offset(raw.at),
                    .owner = std::string(owner.substr(0, owner.find('\0'))),
                    .namesz = raw.namesz,
                    .descsz = raw.descsz,
                    .type = raw.type,
                    .bytes = section_.bytes.subspan(raw.at, raw.next - raw.at),
                    .desc = raw.desc - raw.at});
  }

  void undecoded(const RawNote& raw) {
    foreign(raw);
    const FileOffset where = file_offset(raw.at);
    if (raw.type != NT_STAPSDT) {
      report_.at(rule::note_type, Severity::error, where,
                 fmt::format("type of the note; expected {}, found {}", NT_STAPSDT, raw.type),
                 {"its descriptor is not a probe's either"});
    } else if (other_word(raw)) {
      report_.at(rule::note_word, Severity::error, where,
                 fmt::format("addresses of the note; expected {} bytes each, found {}", word_,
                             12 - word_));
    } else if (raw.descsz < smallest_descriptor(word_)) {
      report_.at(rule::note_short, Severity::error, where,
                 fmt::format("descsz of the note; expected at least {}, found {}",
                             smallest_descriptor(word_), raw.descsz));
    } else {
      report_.at(rule::note_strings, Severity::error, where,
                 fmt::format("strings of the note; expected provider, name and arguments, found "
                             "no NUL behind the provider or the name in descsz {}",
                             raw.descsz));
    }
  }

  void probe(const RawNote& raw, Descriptor decoded) {
    Note& note = into_.notes.emplace_back();
    static_cast<NoteFields&>(note) = std::move(decoded.fields);
    note.section = section_.index;
    note.offset = raw.at;
    note.file_offset = file_offset(raw.at);
    note.size = raw.next - raw.at;
    note.bytes = section_.bytes.subspan(raw.at, note.size);
    note.desc = raw.desc - raw.at;
    const auto canonical = encode_note(note, section_.is64, section_.order);
    note.canonical = canonical && std::ranges::equal(*canonical, note.bytes);
    descriptors_.push_back(raw.desc);
    if (!note.canonical || note.provider.empty() || note.name.empty()) {
      check_header(raw, note);
      check_strings(raw, note, decoded);
      check_padding(raw, note);
    }
  }

  void check_header(const RawNote& raw, const Note& note) {
    if (raw.namesz != kNamesz) {
      report_.note(rule::note_namesz, Severity::error, note,
                   fmt::format("namesz of the note; expected {}, found {}", kNamesz, raw.namesz));
    }
    if (raw.type != NT_STAPSDT) {
      report_.note(rule::note_type, Severity::error, note,
                   fmt::format("type of the note; expected {}, found {}", NT_STAPSDT, raw.type));
    }
  }

  void check_strings(const RawNote& raw, const Note& note, const Descriptor& decoded) {
    for (const auto& [text, what, severity] :
         {std::tuple{&note.provider, "provider", Severity::warning},
          std::tuple{&note.name, "name", Severity::error}}) {
      if (!text->empty()) continue;
      report_.note(rule::note_name, severity, note,
                   fmt::format("{} of the probe; expected some text, found none", what));
    }
    if (!decoded.arguments_terminated) {
      report_.note(
          rule::note_args_nul, Severity::error, note,
          fmt::format("end of the arguments; expected a NUL in descsz {}, found none", raw.descsz));
    } else if (decoded.used != raw.descsz) {
      const ByteView rest = descriptor(raw).subspan(decoded.used);
      const bool zero = std::ranges::all_of(rest, [](std::byte b) { return b == std::byte{0}; });
      report_.note(
          rule::note_descsz, Severity::error, note,
          fmt::format("descsz of the note; expected {}, found {}", decoded.used, raw.descsz),
          {zero ? "it counts zero bytes behind the arguments' NUL, as padding is"
                : "other bytes than zero follow the arguments' NUL; a repair drops them"});
    }
  }

  void check_padding(const RawNote& raw, const Note& note) {
    if (raw.missing_padding != 0) {
      report_.note(rule::note_padding, Severity::error, note,
                   fmt::format("padding of the last note; expected {} more bytes in the section, "
                               "found its end",
                               raw.missing_padding));
    }
    const auto nonzero = [&](std::uint64_t from, std::uint64_t to) {
      return !std::ranges::all_of(section_.bytes.subspan(from, to - from),
                                  [](std::byte b) { return b == std::byte{0}; });
    };
    if (nonzero(raw.name + raw.namesz, raw.desc) || nonzero(raw.desc_end, raw.next)) {
      report_.note(rule::note_padding, Severity::note, note,
                   "padding of the note; expected zeros, found other bytes");
    }
  }

  void check_gap(const RawNote& raw) {
    if (raw.gap == 0) return;
    const bool tail = raw.next == section_.bytes.size();
    report_.at(rule::note_gap, tail ? Severity::warning : Severity::error,
               file_offset(raw.next - raw.gap),
               fmt::format("bytes behind the note; expected {}, found {} zero bytes",
                           tail ? "the section's end" : "the next note", raw.gap));
  }

  const NoteSection& section_;
  NoteScan& into_;
  NoteReport& report_;
  unsigned word_;
  std::vector<std::uint64_t> descriptors_;
};

}  // namespace

std::vector<std::uint64_t> scan_note_section(const NoteSection& section, NoteScan& into,
                                             NoteReport& report) {
  return SectionScanner(section, into, report).run();
}

}  // namespace reprobe
