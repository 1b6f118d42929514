#include "libprobe/audit/diff.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace reprobe {
namespace {

// The signatures of `sites` that `others` lack.
std::vector<const Signature*> missing_in(const SiteCounts& others, const SiteCounts& sites) {
  std::vector<const Signature*> missing;
  for (const auto& [signature, count] : sites) {
    if (!others.contains(signature)) missing.push_back(&signature);
  }
  return missing;
}

bool same_signatures(const SiteCounts& a, const SiteCounts& b) {
  return std::ranges::equal(a, b, {}, &SiteCounts::value_type::first,
                            &SiteCounts::value_type::first);
}

}  // namespace

Signature signature_of(const Probe& probe) {
  Signature signature;
  signature.semaphore = probe.semaphore.value != 0 || probe.note.semaphore_section != 0 ||
                        probe.note.semaphore_undefined;
  signature.arguments.reserve(probe.arguments.size());
  for (const Argument& argument : probe.arguments) {
    signature.arguments.push_back({argument.size, argument.type});
  }
  return signature;
}

std::size_t sites_of(const SiteCounts& sites) {
  return std::transform_reduce(sites.begin(), sites.end(), std::size_t{0}, std::plus<>{},
                               [](const auto& entry) { return entry.second; });
}

bool ProbeSurface::add(const Probe& probe) {
  if (probe.verdict == Verdict::dangling) {
    ++dangling_;
    return false;
  }
  ++names_[{probe.note.provider, probe.note.name}][signature_of(probe)];
  return true;
}

ProbeDifferences diff(const ProbeSurface& before, const ProbeSurface& after) {
  ProbeDifferences result;
  for (const auto& [name, old_sites] : before.names()) {
    const auto found = after.names().find(name);
    if (found == after.names().end()) {
      result.removed.push_back({name.first, name.second, old_sites, {}});
      continue;
    }
    const SiteCounts& new_sites = found->second;
    if (!same_signatures(old_sites, new_sites)) {
      result.changed.push_back({name.first, name.second, old_sites, new_sites});
      continue;
    }
    ++result.same;
    if (sites_of(old_sites) != sites_of(new_sites)) {
      result.site_count.push_back({name.first, name.second, old_sites, new_sites});
    }
  }
  for (const auto& [name, new_sites] : after.names()) {
    if (!before.names().contains(name)) {
      result.added.push_back({name.first, name.second, {}, new_sites});
    }
  }
  return result;
}

std::optional<std::pair<Signature, Signature>> replaced_signature(const NameDifference& changed) {
  const auto gone = missing_in(changed.after, changed.before);
  const auto fresh = missing_in(changed.before, changed.after);
  if (gone.size() != 1 || fresh.size() != 1) return std::nullopt;
  return std::pair(*gone.front(), *fresh.front());
}

}  // namespace reprobe
