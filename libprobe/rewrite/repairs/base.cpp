// base-missing and base-delta.
#include <algorithm>

#include "libprobe/rewrite/base_section.hpp"
#include "libprobe/rewrite/repairs/state.hpp"
#include "libprobe/rewrite/section_symbols.hpp"

namespace reprobe {
namespace {

// All notes follow the base or none: where some cannot be rewritten it stays where it is.
bool notes_can_follow(const FixState& state) {
  if (!state.whole_file() || state.ranges.section_over_header()) return false;
  if (std::ranges::any_of(state.probes.probes, base_is_in_doubt)) return false;
  for (const Section& section : state.file.sections()) {
    if (!holds_notes(section) || section.size.value == 0) continue;
    if (!why_not_read(state, section).empty()) return false;
    if (!section.allocated() && !why_not_change(state, section).empty()) return false;
    if (section.allocated() && !state.wants("note-alloc")) return false;
  }
  return true;
}

// Where note.base is to be something else than the section's address, moving the section would
// change what tracers compute.
bool bases_agree(const FixState& state) {
  return std::ranges::all_of(state.probes.probes,
                             [&](const Probe& probe) { return probe.note.base == state.base; });
}

Result<void> add_base(FixState& state, SectionTable& headers, const EmptyPlace& place) {
  Section base;
  base.name = kBaseSection;
  base.type = SHT_PROGBITS;
  base.flags = SHF_ALLOC;
  base.addr = place.address;
  base.offset = place.offset;
  base.addralign = Size{1};
  const auto added =
      headers.add(base, ".stapsdt.base stands beside the code, as gdb and perf need");
  if (!added) return tl::unexpected(added.error());
  const Section* names =
      state.file.section_at(static_cast<std::uint32_t>(state.file.header().shstrndx));
  if (names != nullptr) state.changes(names->name);
  return {};
}

Result<void> move_base(FixState& state, SectionTable& headers, const Section& base,
                       const EmptyPlace& place) {
  if (names_loaded_symbol(state.file, base.index)) {
    return fail(ErrorCode::refused, base.name, "a loaded symbol belongs to it");
  }
  Plan plan = state.fix.plan;
  const std::string why = ".stapsdt.base has the code's distance between address and offset";
  if (auto done = move_symbols(plan, state.file, base, place.address, why); !done) return done;
  for (auto done : {headers.set(base, SectionField::flags, base.flags | SHF_ALLOC, why),
                    headers.set(base, SectionField::addr, place.address.value, why),
                    headers.set(base, SectionField::offset, place.offset.value, why),
                    headers.set(base, SectionField::size, 0, why)}) {
    if (!done) return done;
  }
  state.fix.plan = std::move(plan);
  state.changes(".symtab");
  return {};
}

}  // namespace

Result<void> repair_base(FixState& state) {
  const ElfFile& file = state.file;
  const ProbeFile& probes = state.probes;
  const Section* base = misplaced_base(file, probes);
  const auto place =
      base != nullptr ? place_for_base(file, probes, *base) : place_for_new_base(file, probes);
  const std::string_view rule = base != nullptr ? repair::base_delta : repair::base_missing;
  if (!state.wants(rule) || !notes_can_follow(state)) return {};
  if (!place) {
    if (base != nullptr) state.refuse(kBaseSection, "base-delta: no place beside the code for it");
    return {};
  }
  if (!state.wants(repair::base_shift) && !bases_agree(state)) return {};

  SectionTable headers = state.headers;
  const auto done =
      base != nullptr ? move_base(state, headers, *base, *place) : add_base(state, headers, *place);
  if (!done && done.error().code == ErrorCode::refused) {
    state.refuse(kBaseSection, std::string(rule) + ": " + done.error().message);
    return {};
  }
  if (!done) return done;
  state.headers = std::move(headers);
  state.base = place->address;
  state.base_moved = true;
  state.fix.base = place->address;
  state.changes(kBaseSection);
  state.repaired(rule, base != nullptr ? ".stapsdt.base moves beside the code"
                                       : ".stapsdt.base is put back, beside the code");
  return {};
}

}  // namespace reprobe
