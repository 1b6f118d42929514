// semaphore-section: bcc and perf compute a counter's file offset from the address and the offset
// of .probes alone. Any header in the counters' segment says the right distance.
#include <algorithm>
#include <optional>

#include "libprobe/rewrite/repairs/state.hpp"
#include "libprobe/rewrite/semaphore_values.hpp"

namespace reprobe {
namespace {

// The segment that holds the counters of the probes that stay; nullptr where none has one. Error
// refused: several do, and no one header tells the distance of all.
Result<const Segment*> segment_of_counters(const FixState& state) {
  const Segment* found = nullptr;
  for (std::size_t i = 0; i < state.probes.probes.size(); ++i) {
    const VirtAddr counter = state.fields[i].semaphore;
    if (state.fates[i] == NoteFate::remove || !counter_works(state.file, counter)) continue;
    const Segment* segment = state.file.load_segment(counter);
    if (found == nullptr) found = segment;
    if (segment != found) {
      return fail(ErrorCode::refused, "", "the counters lie in several segments");
    }
  }
  return found;
}

struct Place {
  VirtAddr address;
  FileOffset offset;
};

// Where the segment's bytes of the file end. Inside or before another section of data an empty one
// makes BOLT 19 crash; here, and without contents (SHT_NOBITS), GNU strip, eu-strip and llvm-strip
// keep its address and its offset.
std::optional<Place> place_behind(const ElfFile& file, const Segment& segment) {
  const auto address = checked_add(segment.vaddr.value, segment.filesz.value);
  const auto offset = checked_add(segment.offset.value, segment.filesz.value);
  if (!address || !offset) return std::nullopt;
  const bool inside = std::ranges::any_of(file.sections(), [&](const Section& section) {
    return section.allocated() && section.addr.value < *address &&
           section.contains(VirtAddr{*address}) &&
           !(section.nobits() && (section.flags & SHF_TLS) != 0);
  });
  if (inside) return std::nullopt;
  return Place{VirtAddr{*address}, FileOffset{*offset}};
}

// bcc wants code, then .probes, then the notes.
Result<void> add_in_order(const FixState& state, SectionTable& headers, const Section& probes) {
  const auto added = headers.add(probes, ".probes tells bcc and perf where the counters are");
  if (!added) return tl::unexpected(added.error());
  if (headers.place_of(state.notes) > headers.place_of(*added)) return {};
  return headers.exchange(state.notes, *added, ".note.stapsdt stands behind .probes");
}

}  // namespace

Result<void> repair_probes_section(FixState& state) {
  const bool wanted = state.whole_file() && state.wants(repair::semaphore_section) &&
                      !state.probes.debug_file && !state.left_a_section && state.notes != 0 &&
                      !state.ranges.section_over_header();
  if (!wanted || state.file.section(kProbesSection) != nullptr) return {};
  const auto counters = segment_of_counters(state);
  if (counters && *counters == nullptr) return {};
  const auto refuse = [&](const std::string& why) -> Result<void> {
    state.refuse(kProbesSection, "semaphore-section: " + why);
    return {};
  };
  if (!counters) return refuse(counters.error().message);
  const auto place = place_behind(state.file, **counters);
  if (!place) return refuse("no place beside the counters for the section");

  Section probes;
  probes.name = kProbesSection;
  probes.type = SHT_NOBITS;
  probes.flags = SHF_ALLOC | SHF_WRITE;
  probes.addr = place->address;
  probes.offset = place->offset;
  probes.addralign = Size{1};
  SectionTable headers = state.headers;
  const auto done = add_in_order(state, headers, probes);
  if (!done && done.error().code == ErrorCode::refused) return refuse(done.error().message);
  if (!done) return done;
  state.headers = std::move(headers);
  state.changes(kProbesSection);
  state.changes(kStapsdtSection);
  state.changes(".symtab");
  const Section* names =
      state.file.section_at(static_cast<std::uint32_t>(state.file.header().shstrndx));
  if (names != nullptr) state.changes(names->name);
  state.repaired(repair::semaphore_section, ".probes is added beside the counters");
  return {};
}

}  // namespace reprobe
