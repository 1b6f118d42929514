// scan_notes(): the .note.stapsdt sections of a file, one after the other.
#include "libprobe/notes/stapsdt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "libprobe/notes/load_relocations.hpp"
#include "libprobe/notes/relocate.hpp"
#include "libprobe/notes/report.hpp"
#include "libprobe/notes/rules.hpp"
#include "libprobe/notes/section_scan.hpp"

namespace reprobe {
namespace {

class FileScanner {
 public:
  explicit FileScanner(const ElfFile& file)
      : file_(file),
        relocatable_(file.header().type == ET_REL),
        report_(scan_.findings, !relocatable_),
        load_relocations_(file) {}

  NoteScan run() {
    for (const Section& section : file_.sections()) {
      if (section.name == kStapsdtSection) one(section);
    }
    report_.finish();
    std::ranges::stable_sort(scan_.notes, {}, &Note::file_offset);
    std::ranges::stable_sort(scan_.foreign, {}, &ForeignNote::file_offset);
    return std::move(scan_);
  }

  NoteScan run_others() {
    const auto sections = file_.sections();
    if (relocatable_ ||
        std::ranges::find(sections, kStapsdtSection, &Section::name) != sections.end()) {
      return {};
    }
    for (const Section& section : sections) {
      // A name that cannot be read may be .note.stapsdt.
      const bool named = !section.name.empty() && section.name != kForeignNotes;
      if (section.type != SHT_NOTE || !named) continue;
      const auto bytes = readable(section);
      if (bytes && !bytes->empty()) linked(section, *bytes);
    }
    NoteScan found;
    found.notes = std::move(scan_.notes);
    std::ranges::stable_sort(found.notes, {}, &Note::file_offset);
    return found;
  }

 private:
  void one(const Section& section) {
    if (section.type != SHT_NOTE) {
      report_.at(rule::note_section_type, Severity::error, section.offset,
                 fmt::format("type of section {} (.note.stapsdt); expected SHT_NOTE (7), found {}",
                             section.index, section.type));
      if (!holds_notes(section)) return;
    }
    check_header(section);
    const auto bytes = readable(section);
    if (!bytes || bytes->empty()) return;
    relocatable_ ? object(section, *bytes) : linked(section, *bytes);
  }

  void linked(const Section& section, ByteView bytes) {
    const std::size_t notes = scan_.notes.size();
    const auto descriptors = scan(section, bytes);
    if (!section.allocated()) return;
    load_relocations_.apply(section, std::span(scan_.notes).subspan(notes), descriptors);
  }

  std::vector<std::uint64_t> scan(const Section& section, ByteView bytes) {
    return scan_note_section({.bytes = bytes,
                              .index = section.index,
                              .offset = section.offset,
                              .addralign = section.addralign.value,
                              .is64 = file_.header().is64,
                              .order = file_.header().order},
                             scan_, report_);
  }

  // The note section of an object: what a linker would make of it.
  void object(const Section& section, ByteView bytes) {
    if (!relocator_) relocator_.emplace(file_, report_);
    const std::size_t notes = scan_.notes.size();
    const std::size_t foreign = scan_.foreign.size();
    const NoteRelocations relocations = relocator_->relocations_of(section);
    const Bytes changed = relocator_->with_differences(relocations, bytes);
    const auto descriptors = scan(section, changed.empty() ? bytes : ByteView(changed));
    // `bytes` of a note are the file's, also where another copy was read.
    for (Note& note : std::span(scan_.notes).subspan(notes)) {
      note.bytes = bytes.subspan(note.offset, note.size);
    }
    for (ForeignNote& note : std::span(scan_.foreign).subspan(foreign)) {
      note.bytes = bytes.subspan(note.offset, note.size);
    }
    relocator_->apply(relocations, std::span(scan_.notes).subspan(notes), descriptors);
  }

  void check_header(const Section& section) {
    if (section.allocated()) {
      report_.at(rule::note_alloc, Severity::error, section.offset,
                 fmt::format("sh_flags of section {}; expected no SHF_ALLOC, found {:#x}",
                             section.index, section.flags));
    }
    // An object has one note section for each COMDAT group.
    if (!relocatable_ && first_ != 0) {
      report_.at(rule::note_sections, Severity::error, section.offset,
                 fmt::format("sections named .note.stapsdt; expected section {} only, found {} too",
                             first_, section.index));
    }
    if (first_ == 0) first_ = section.index;
  }

  // The section's bytes, if no other note section has shown them already: a file of many headers
  // over the same bytes would otherwise be read many times, and repaired twice.
  std::optional<ByteView> readable(const Section& section) {
    const auto unreadable = [&](std::string_view found) {
      scan_.stopped.emplace_back(section.index, 0);
      report_.at(rule::note_unreadable, Severity::error, section.offset,
                 fmt::format("bytes of section {}; expected notes of its own in the file, found {}",
                             section.index, found));
      return std::nullopt;
    };
    if ((section.flags & SHF_COMPRESSED) != 0) return unreadable("SHF_COMPRESSED");
    const auto bytes = file_.contents(section);
    if (!bytes) return unreadable(bytes.error().message);
    const std::uint64_t start = section.offset.value;
    const std::uint64_t end = start + bytes->size();
    if (start == end) return ByteView{};
    auto next = seen_.lower_bound(start);
    const bool after_overlaps = next != seen_.end() && next->first < end;
    const bool before_overlaps = next != seen_.begin() && std::prev(next)->second > start;
    if (after_overlaps || before_overlaps) return unreadable("those of another note section");
    seen_.emplace(start, end);
    return *bytes;
  }

  const ElfFile& file_;
  bool relocatable_;
  NoteScan scan_;
  NoteReport report_;
  std::optional<NoteRelocator> relocator_;
  LoadRelocations load_relocations_;
  std::map<std::uint64_t, std::uint64_t> seen_;  // start -> end of the bytes read
  std::uint32_t first_{};
};

}  // namespace

bool holds_notes(const Section& section) {
  return section.name == kStapsdtSection &&
         (section.type == SHT_NOTE || section.type == SHT_PROGBITS);
}

NoteScan scan_notes(const ElfFile& file) { return FileScanner(file).run(); }

NoteScan scan_other_sections(const ElfFile& file) { return FileScanner(file).run_others(); }

}  // namespace reprobe
