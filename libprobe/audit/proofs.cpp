#include "libprobe/audit/proofs.hpp"

#include <fmt/format.h>

namespace reprobe {

std::string spot(const Probe& probe) {
  if (!probe.facts.function) return fmt::format("{:#x}", probe.site.value);
  const Function& function = *probe.facts.function;
  const std::string name = function.name.empty()
                               ? fmt::format("function at {:#x}", function.start.value)
                               : function.name;
  return fmt::format("{}+{:#x}", name, probe.site.value - function.start.value);
}

bool is_nameless(const Probe& probe) {
  return probe.note.provider.empty() || probe.note.name.empty();
}

Proofs::Proofs(const ProbeFile& file, bool relocatable) : file_(file), relocatable_(relocatable) {
  for (const Probe& probe : file.probes) {
    const SiteFacts& facts = probe.facts;
    if (facts.place == Place::only_segment && facts.nop.kind != NopKind::none && facts.function) {
      unmarked_code_.insert(probe.section);
    }
  }
}

// Something else than the note may be what is wrong: then its address proves nothing.
bool Proofs::address_in_doubt(const Probe& probe) const {
  const SiteFacts& facts = probe.facts;
  return facts.site_if_shifted || facts.site_if_not_moved || is_nameless(probe) ||
         (!relocatable_ && (probe.note.location_unresolved || !file_.has_code));
}

std::string Proofs::by_address(const Probe& probe) const {
  const SiteFacts& facts = probe.facts;
  if (address_in_doubt(probe)) return "";
  if (facts.relocation == RelocationSays::discarded) {
    return "the kept relocation of the location is R_*_NONE: the linker discarded its section";
  }
  if (relocatable_ && facts.place == Place::outside) {
    return probe.note.location_unresolved ? "the relocation of the location names no section" : "";
  }
  switch (facts.place) {
    case Place::outside:
      return fmt::format("{:#x} lies in no segment", probe.site.value);
    case Place::only_segment:
      // Constants share a segment with code in many files. But a nop there may be code whose
      // section has no mark, or that has no section.
      if (facts.nop.kind != NopKind::none || unmarked_code_.contains(probe.section)) return "";
      [[fallthrough]];
    case Place::not_executable:
      return fmt::format("{:#x} lies in {}", probe.site.value,
                         probe.section.empty() ? "no section" : probe.section + ", not in code");
    case Place::executable:
      return "";
  }
  return "";
}

// May the bytes at the site prove anything?
bool Proofs::bytes_tell(const Probe& probe) const {
  const SiteFacts& facts = probe.facts;
  return !address_in_doubt(probe) && facts.place == Place::executable && facts.has_bytes &&
         file_.machine_known && facts.relocation != RelocationSays::live;
}

std::string Proofs::by_boundary(const Probe& probe) const {
  if (!bytes_tell(probe) || probe.facts.boundary.result != Boundary::no) return "";
  return fmt::format("{} is no instruction boundary: {}", spot(probe), probe.facts.boundary.detail);
}

std::string Proofs::by_missing_nop(const Probe& probe, NoteOrder order, DeadRun run) const {
  if (!bytes_tell(probe) || probe.facts.nop.kind != NopKind::none) return "";
  if (order != NoteOrder::far_away) return "";
  // A jump, call or trap is what other tools leave of a nop: it takes dead neighbours, too.
  if (probe.facts.looks_patched && run != DeadRun::inside) return "";
  return fmt::format(
      "no nop at {}, and it is far from where its place among the live notes lets it be",
      spot(probe));
}

}  // namespace reprobe
