#include "libprobe/rewrite/sled/function_planner.hpp"

#include <algorithm>

#include "libprobe/rewrite/sled/sled_bytes.hpp"

namespace reprobe {

void FunctionPlanner::run() {
  plan_all(Operand::low_byte);
  if (refused_.empty() || last_operand() == Operand::low_byte) return;
  // A way that breakpoints leave intact may take the room of another site, which has no other.
  const std::size_t refused = refused_.size();
  forget();
  plan_all(last_operand());
  if (refused_.size() < refused) return;
  forget();
  plan_all(Operand::low_byte);
}

void FunctionPlanner::plan_all(Operand first) {
  for (worst_ = first;; worst_ = static_cast<Operand>(static_cast<int>(worst_) + 1)) {
    for (const VirtAddr site : sites_) {
      if (!runs_.is_planned(site)) plan(site);
    }
    for (const VirtAddr site : sites_) {
      if (!runs_.is_planned(site) && flow_.complete) plan_hop(site);
    }
    if (worst_ == last_operand()) break;
  }
  for (const auto& [site, why] : refused_) {
    planner_.refuse(VirtAddr{site}, why.words, why.detail);
  }
}

void FunctionPlanner::forget() {
  for (std::size_t i = first_patch_; i < planner_.plan_.patches.size(); ++i) {
    planner_.taken_.used.erase(planner_.plan_.patches[i].at.value);
  }
  for (std::size_t i = first_site_; i < planner_.plan_.sites.size(); ++i) {
    planner_.taken_.planned.erase(planner_.plan_.sites[i].site.value);
  }
  for (const std::uint64_t target : reaimed_) planner_.taken_.reaimed.erase(target);
  for (const auto& [site, why] : refused_) planner_.refused_.erase(site);
  planner_.plan_.patches.resize(first_patch_);
  planner_.plan_.sites.resize(first_site_);
  planner_.plan_.stubs.resize(first_stub_);
  reaimed_.clear();
  refused_.clear();
}

void FunctionPlanner::plan(VirtAddr site) {
  const CodeInstruction* instruction = flow_.at(site);
  if (instruction == nullptr) {
    refused_[site.value] = {"not an instruction boundary", {}};
    return;
  }
  const auto at = static_cast<std::size_t>(instruction - flow_.code.data());
  if (in_place(at)) return;
  if (!flow_.complete) {
    refused_[site.value] = {"control flow not understood", flow_.why_incomplete};
    return;
  }
  if (redirect(at) || displace_neighbour(at)) return;
  const auto why = displace(at, Targets::none);
  if (why && displace(at, Targets::reaimed) && !displace_late(at)) refused_[site.value] = *why;
}

void FunctionPlanner::plan_hop(VirtAddr site) {
  const CodeInstruction* instruction = flow_.at(site);
  if (instruction == nullptr) return;
  const auto at = static_cast<std::size_t>(instruction - flow_.code.data());
  if (!hop(at, Targets::none) && !hop(at, Targets::reaimed)) hop_neighbour(at);
}

Operand FunctionPlanner::last_operand() const {
  return planner_.rules_.debuggable ? Operand::low_byte : Operand::broken;
}

bool FunctionPlanner::good_operand(const Run& run, std::uint64_t size) const {
  return runs_.operand(start(run.first), size) <= worst_;
}

template <typename Take>
bool FunctionPlanner::each_neighbour(std::size_t at, std::uint64_t size, Take take) {
  std::size_t last = at;
  for (std::size_t i = at; i < flow_.code.size() && is_plain_site(i); ++i) {
    if (i != at && runs_.is_target(start(i))) break;
    last = i;
  }
  if (!is_plain_site(at)) return false;
  const std::size_t next = last + 1;
  if (next < flow_.code.size() && !runs_.is_target(start(next))) {
    const auto run = alone(next, size);
    StubPlan stub;
    for (std::size_t i = at; i <= next; ++i) stub.steps.push_back(step(i));
    if (!flow_.code[next].ends_block()) stub.resume = end(next);
    if (run && can_emit(stub) && take(*run, stub)) return true;
  }
  if (at == 0 || runs_.is_target(start(at)) || flow_.code[at - 1].ends_block()) return false;
  const auto run = alone(at - 1, size);
  StubPlan stub;
  for (std::size_t i = at - 1; i <= last; ++i) stub.steps.push_back(step(i));
  stub.resume = end(last);
  return run && can_emit(stub) && take(*run, stub);
}

bool FunctionPlanner::displace_neighbour(std::size_t at) {
  return each_neighbour(at, kJumpSize, [&](const Run& run, StubPlan& stub) {
    add_patch(jump_over(run, planner_.plan_.stubs.size()));
    add_stub(std::move(stub), Tactic::displace);
    return true;
  });
}

bool FunctionPlanner::hop_neighbour(std::size_t at) {
  return each_neighbour(at, kHopSize,
                        [&](const Run& run, StubPlan& stub) { return hop_from(run, {}, stub); });
}

bool FunctionPlanner::displace_late(std::size_t at) {
  for (std::size_t late = at + 1; late < flow_.code.size(); ++late) {
    const std::uint64_t before = start(late).value - start(at).value;
    const auto run = runs_.from(at, late, before + kJumpSize, Targets::none);
    if (!run || before > RunFinder::kLongest || !same_rows(at, late)) return false;
    if (runs_.operand(start(late), kJumpSize) > worst_) continue;
    StubPlan stub = stub_of(*run);
    if (!can_emit(stub)) continue;
    for (std::size_t i = at; i < late; ++i) {
      add_patch({.form = Patch::Form::nops, .at = start(i), .size = flow_.code[i].size});
    }
    add_patch(jump_over({late, run->last, run->end, run->falls_through, {}},
                        planner_.plan_.stubs.size()));
    add_stub(std::move(stub), Tactic::displace);
    return true;
  }
  return false;
}

bool FunctionPlanner::same_rows(std::size_t first, std::size_t last) const {
  for (std::size_t i = first + 1; i <= last; ++i) {
    if (!planner_.rules_.same_row(start(first), start(i))) return false;
  }
  return true;
}

bool FunctionPlanner::is_plain_site(std::size_t i) const {
  return flow_.code[i].kind == InstructionKind::nop && runs_.is_wanted_site(start(i)) &&
         !runs_.is_planned(start(i));
}

std::optional<Run> FunctionPlanner::alone(std::size_t i, std::uint64_t size) {
  if (flow_.code[i].size.value < size || runs_.is_wanted_site(start(i))) return std::nullopt;
  const auto run = runs_.from(i, i, size, Targets::none);
  return run ? std::optional(*run) : std::nullopt;
}

bool FunctionPlanner::is_free(VirtAddr begin, VirtAddr end) const {
  return planner_.taken_.is_free(begin, end);
}

bool FunctionPlanner::guarded(VirtAddr site) const {
  return planner_.rules_.kind == SledKind::nop5 && planner_.rules_.needs_guard(flow_, site);
}

StubStep FunctionPlanner::step(std::size_t i) const {
  StubStep step{flow_.code[i], std::nullopt, false};
  if (runs_.is_wanted_site(start(i))) {
    step.sled = start(i);
    step.guarded = guarded(start(i));
    step.keeps_flags =
        planner_.rules_.kind == SledKind::slot && planner_.rules_.uses_flags(flow_, start(i));
  }
  return step;
}

bool FunctionPlanner::follows_site_nop(std::size_t at) const {
  if (planner_.rules_.kind != SledKind::nop5 || at == 0) return false;
  const CodeInstruction& before = flow_.code[at - 1];
  return before.kind == InstructionKind::nop && before.size.value == 1 &&
         (flow_.target(before.address) & kTargetSite) != 0;
}

bool FunctionPlanner::in_place(std::size_t at) {
  const VirtAddr site = start(at);
  const SledKind kind = planner_.rules_.kind;
  // A test of data is code, which has to go somewhere.
  if (kind == SledKind::slot || guarded(site)) return false;
  const std::uint64_t size = sled_size(kind).value;
  std::size_t last = at;
  while (last < flow_.code.size() && flow_.code[last].kind == InstructionKind::nop &&
         end(last).value - site.value < size) {
    ++last;
  }
  if (last == flow_.code.size() || flow_.code[last].kind != InstructionKind::nop) return false;
  if (!sled_fits_page(kind, site)) return false;
  // With other targets unknown only a nop that is the whole sled can stay what it is.
  if (!flow_.complete && last != at) return false;
  for (std::size_t i = at + 1; i <= last; ++i) {
    if (flow_.target(start(i)) != 0) return false;
  }
  if (runs_.target_inside(site, end(last)) || !is_free(site, end(last))) return false;
  if (flow_.kept.why_kept(site, end(last)) || follows_site_nop(at)) return false;
  // The sled's second nop starts behind its first.
  const unsigned kept = kind == SledKind::nop10 ? 1U << 1 : 0;
  const unsigned inside = runs_.boundaries(site, std::min<std::uint64_t>(size, 8)) & ~kept;
  if (planner_.rules_.debuggable && inside != 0) return false;
  add_patch({.form = Patch::Form::sled,
             .at = site,
             .size = Size{end(last).value - site.value},
             .boundaries = static_cast<std::uint8_t>(inside)});
  add_site({site, Tactic::in_place, std::nullopt});
  return true;
}

bool FunctionPlanner::redirect(std::size_t at) {
  std::size_t next = at;
  StubPlan stub;
  for (; next < flow_.code.size() && runs_.is_wanted_site(start(next)) &&
         !runs_.is_planned(start(next)) && flow_.code[next].kind == InstructionKind::nop;
       ++next) {
    if (next != at && runs_.is_target(start(next))) return false;
    stub.steps.push_back(step(next));
  }
  if (next == at || next == flow_.code.size()) return false;
  const CodeInstruction& branch = flow_.code[next];
  const bool call = branch.kind == InstructionKind::call;
  if (!call && branch.kind != InstructionKind::jump) return false;
  if (!branch.branch_field || branch.branch_field->width != 4 || !branch.target) return false;
  // Who comes to the call from elsewhere does not pass the site.
  if (runs_.target_inside(start(at), end(next))) return false;
  stub.lower = call ? 8 : 0;
  // What a call leaves below the stack pointer is nobody's: no red zone to protect.
  if (call) {
    for (StubStep& step : stub.steps) step.guarded = false;
  }
  stub.resume = branch.target;
  const VirtAddr field{branch.address.value + branch.branch_field->at};
  if (flow_.kept.why_kept(field, end(next))) return false;
  if (!is_free(field, end(next)) || !can_emit(stub)) return false;
  add_patch({.form = Patch::Form::relative,
             .at = field,
             .size = Size{4},
             .stub = planner_.plan_.stubs.size()});
  add_stub(std::move(stub), call ? Tactic::call_target : Tactic::jump_target);
  return true;
}

StubPlan FunctionPlanner::stub_of(const Run& run) const {
  StubPlan stub;
  for (std::size_t i = run.first; i <= run.last; ++i) stub.steps.push_back(step(i));
  // A nop's sled is no instruction that ends the block.
  if (run.falls_through) stub.resume = end(run.last);
  return stub;
}

std::optional<Reason> FunctionPlanner::displace(std::size_t at, Targets targets) {
  return runs_.each(at, kJumpSize, targets, [&](const Run& run) {
    StubPlan stub = stub_of(run);
    if (!good_operand(run, kJumpSize)) return false;
    const auto sources = short_sources(run);
    if (!sources || !can_emit(stub)) return false;
    add_patch(jump_over(run, planner_.plan_.stubs.size()));
    add_aimed_stub(run, *sources, std::move(stub), Tactic::displace);
    return true;
  });
}

Patch FunctionPlanner::jump_over(const Run& run, std::size_t owner) const {
  return {.form = Patch::Form::jump,
          .at = start(run.first),
          .size = Size{run.end.value - start(run.first).value},
          .stub = planner_.plan_.stubs.size(),
          .boundaries = runs_.boundaries(start(run.first), kJumpSize),
          .owner = owner};
}

bool FunctionPlanner::can_emit(const StubPlan& stub) const {
  for (const StubStep& step : stub.steps) {
    const std::int64_t lower = stub.lower + (step.guarded ? kRedZone : 0);
    if (step.sled && !planner_.rules_.arguments_fit(*step.sled, lower)) return false;
  }
  return planner_.rules_.unwinds(stub);
}

void FunctionPlanner::add_patch(const Patch& patch) {
  planner_.taken_.used.emplace(patch.at.value, patch.at.value + patch.size.value);
  planner_.plan_.patches.push_back(patch);
}

void FunctionPlanner::add_site(const PlannedSite& site) {
  planner_.plan_.sites.push_back(site);
  planner_.taken_.planned.insert(site.site.value);
  refused_.erase(site.site.value);
}

void FunctionPlanner::add_stub(StubPlan stub, Tactic tactic) {
  for (const StubStep& step : stub.steps) {
    if (step.sled) add_site({*step.sled, tactic, planner_.plan_.stubs.size()});
  }
  planner_.plan_.stubs.push_back(std::move(stub));
}

}  // namespace reprobe
