#include "libprobe/rewrite/sled/planner.hpp"

#include <algorithm>

#include "libprobe/rewrite/sled/function_planner.hpp"

namespace reprobe {

const char* to_string(Tactic tactic) {
  switch (tactic) {
    case Tactic::in_place:
      return "in-place";
    case Tactic::call_target:
      return "call-target";
    case Tactic::jump_target:
      return "jump-target";
    case Tactic::displace:
      return "displace";
    case Tactic::hop:
      break;
  }
  return "hop";
}

void SledPlanner::add(const FunctionFlow& flow, std::span<const VirtAddr> sites) {
  FunctionPlanner(*this, flow, sites).run();
}

void SledPlanner::refuse(VirtAddr site, std::string reason, std::string detail) {
  refused_.emplace(site.value, RefusedSite{site, std::move(reason), std::move(detail)});
}

SledPlan SledPlanner::finish() && {
  std::ranges::sort(plan_.sites, {}, &PlannedSite::site);
  for (auto& [site, refused] : refused_) plan_.refused.push_back(std::move(refused));
  std::ranges::sort(plan_.patches, {}, &Patch::at);
  return std::move(plan_);
}

}  // namespace reprobe
