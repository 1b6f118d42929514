#include "libprobe/rewrite/plain_notes.hpp"

#include <algorithm>

#include "libprobe/elf/file_ranges.hpp"
#include "libprobe/rewrite/repairs/state.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> refuse_notes(std::string why, std::string hint = "run reprobe fix first") {
  return fail(ErrorCode::refused, std::string(kStapsdtSection), std::move(why), std::move(hint));
}

}  // namespace

Result<const Section*> plain_notes(const ElfFile& file, const ProbeFile& probes) {
  const Section* notes = nullptr;
  for (const Section& section : file.sections()) {
    if (!holds_notes(section)) continue;
    if (notes != nullptr) return refuse_notes("several note sections");
    notes = &section;
  }
  if (notes == nullptr) return refuse_notes("no probe notes", "");
  if (notes->type != SHT_NOTE) return refuse_notes("the notes are not in a section of notes");
  if (notes->allocated()) return refuse_notes("the notes are loaded with the program");
  if (!probes.scan.foreign.empty() || !probes.scan.stopped.empty() ||
      !std::ranges::all_of(probes.probes, [](const Probe& p) { return p.note.canonical; })) {
    return refuse_notes("the notes are not canonical");
  }
  if (std::ranges::any_of(probes.probes, base_is_in_doubt)) {
    return refuse_notes("notes whose sites are in doubt: the file was moved");
  }
  if (const auto sharer = FileRanges(file).sharer(*notes)) {
    return refuse_notes("the notes overlap " + *sharer, "");
  }
  return notes;
}

}  // namespace reprobe
