#include "libprobe/probes/probe.hpp"

namespace reprobe {

const std::optional<Function>& function_of(const Probe& probe) {
  return probe.origin ? probe.origin->function : probe.facts.function;
}

VirtAddr site_in_function(const Probe& probe) {
  return probe.origin ? probe.origin->site : probe.site;
}

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::live:
      return "live";
    case Verdict::dangling:
      return "dangling";
    case Verdict::ambiguous:
      return "ambiguous";
    case Verdict::unknown:
      break;
  }
  return "unknown";
}

const char* to_string(NopKind kind) {
  switch (kind) {
    case NopKind::nop:
      return "nop";
    case NopKind::nop5:
      return "nop5";
    case NopKind::nop10:
      return "nop10";
    case NopKind::none:
    case NopKind::other:
      break;
  }
  return "other";
}

std::string site_kind(const Probe& probe) {
  if (!probe.legacy.empty()) return "legacy";
  if (probe.facts.slot) return "sled-slot";
  const std::string kind = to_string(probe.facts.nop.kind);
  return probe.section == kSledSection ? "sled-" + kind : kind;
}

}  // namespace reprobe
