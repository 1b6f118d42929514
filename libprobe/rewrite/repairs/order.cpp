// section-order: bcc looks for code, then .probes, then the notes, with one cursor (bcc_elf.c,
// listprobes).
#include <algorithm>

#include "libprobe/rewrite/repairs/state.hpp"

namespace reprobe {
namespace {

// Each costs a look at all headers and loaded symbols; the first one does in every sane file.
constexpr std::size_t kMostTries = 8;

// The header of .probes that bcc finds behind the first code; nothing where it finds none, and then
// it looks for the notes from the start.
const Section* probes_behind_code(const ElfFile& file) {
  const auto sections = file.sections();
  const auto code = std::ranges::find_if(
      sections, [](const Section& s) { return (s.flags & SHF_EXECINSTR) != 0; });
  if (code == sections.end()) return nullptr;
  const auto probes =
      std::find_if(code, sections.end(), [](const Section& s) { return s.name == kProbesSection; });
  return probes == sections.end() ? nullptr : &*probes;
}

}  // namespace

Result<void> repair_order(FixState& state) {
  const Section* probes = probes_behind_code(state.file);
  if (probes == nullptr || state.notes == 0 || !state.whole_file()) return {};
  if (!state.wants(repair::section_order) || state.ranges.section_over_header()) return {};
  if (state.headers.place_of(state.notes) > probes->index) return {};
  // Where the notes are still loaded, or the headers lie over something else, neither is touched.
  const Section* notes = state.file.section_at(state.notes);
  if ((notes != nullptr && notes->allocated()) || state.ranges.sharer_of_section_headers()) {
    state.refuse(kStapsdtSection, "section-order: the headers cannot be changed safely");
    return {};
  }

  // The notes and a section behind .probes change places: two numbers change, and only sections
  // that are not loaded, so that no loaded symbol has to follow. Another of the notes' name, which
  // is not read as notes, would be taken for them.
  std::string why = "no section behind .probes can change places with the notes";
  std::size_t tries = 0;
  for (const Section& other : state.file.sections().subspan(probes->index)) {
    const std::uint32_t place = state.headers.place_of(other.index);
    if (other.allocated() || place <= probes->index || other.name == kStapsdtSection) continue;
    if (++tries > kMostTries) break;
    SectionTable headers = state.headers;
    const auto done =
        headers.exchange(state.notes, other.index, ".note.stapsdt stands behind .probes");
    if (!done) {
      why = done.error().message;
      continue;
    }
    state.headers = std::move(headers);
    state.changes(kStapsdtSection);
    state.changes(other.name);
    state.changes(".symtab");
    state.repaired(repair::section_order, ".note.stapsdt stands behind .probes");
    return {};
  }
  state.refuse(kStapsdtSection, "section-order: " + why);
  return {};
}

}  // namespace reprobe
