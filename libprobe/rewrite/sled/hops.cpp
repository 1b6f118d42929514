#include <algorithm>

#include "libprobe/rewrite/sled/function_planner.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kReach = 127;  // of a rel8 forward; one more backward

}  // namespace

void FunctionPlanner::add_aimed_stub(const Run& run, const std::vector<SourceRun>& sources,
                                     StubPlan stub, Tactic tactic) {
  const std::size_t index = planner_.plan_.stubs.size();
  add_stub(std::move(stub), tactic);
  for (const std::size_t target : run.reaimed) {
    planner_.taken_.reaimed.insert(start(target).value);
    reaimed_.push_back(start(target).value);
    for (const std::size_t source : runs_.branches_to(start(target))) {
      const CodeInstruction& branch = flow_.code[source];
      if (branch.branch_field->width != 4) continue;
      add_patch({.form = Patch::Form::relative,
                 .at = VirtAddr{branch.address.value + branch.branch_field->at},
                 .size = Size{4},
                 .stub = index,
                 .step = target - run.first});
    }
  }
  for (const SourceRun& source : sources) {
    add_patch(jump_over(source.run, index));
    StubPlan moved = stub_of(source.run);
    moved.steps[source.branch - source.run.first].aim = StubPlace{index, source.target - run.first};
    planner_.plan_.stubs.push_back(std::move(moved));
  }
}

std::optional<std::vector<SourceRun>> FunctionPlanner::short_sources(const Run& run) {
  std::vector<SourceRun> sources;
  for (const std::size_t target : run.reaimed) {
    for (const std::size_t branch : runs_.branches_to(start(target))) {
      if (flow_.code[branch].branch_field->width == 4) continue;
      const auto source = run_of_branch(branch, run, sources);
      if (!source) return std::nullopt;
      sources.push_back({*source, branch, target});
    }
  }
  return sources;
}

std::optional<Run> FunctionPlanner::run_of_branch(std::size_t branch, const Run& taken,
                                                  const std::vector<SourceRun>& others) {
  std::optional<Run> found;
  runs_.each(branch, kJumpSize, Targets::none, [&](const Run& run) {
    const bool good = good_operand(run, kJumpSize) && may_move_too(run, taken, others, branch) &&
                      can_emit(stub_of(run));
    if (good) found = run;
    return good;
  });
  return found;
}

bool FunctionPlanner::may_move_too(const Run& run, const Run& taken,
                                   const std::vector<SourceRun>& others,
                                   std::optional<std::size_t> branch) {
  const auto apart = [&](const Run& other) {
    return run.end <= start(other.first) || other.end <= start(run.first);
  };
  bool good = apart(taken);
  for (const SourceRun& other : others) good = good && apart(other.run);
  for (std::size_t i = run.first; i <= run.last; ++i) {
    good = good && !runs_.is_wanted_site(start(i));
  }
  for (const std::size_t target : taken.reaimed) {
    for (const std::size_t source : runs_.branches_to(start(target))) {
      good = good && (source == branch || source < run.first || source > run.last);
    }
  }
  return good;
}

bool FunctionPlanner::hop(std::size_t at, Targets targets) {
  bool done = false;
  runs_.each(at, kHopSize, targets, [&](const Run& run) {
    StubPlan stub = stub_of(run);
    const auto sources = short_sources(run);
    done =
        sources && good_operand(run, kHopSize) && can_emit(stub) && hop_from(run, *sources, stub);
    return done;
  });
  return done;
}

bool FunctionPlanner::hop_from(const Run& run, const std::vector<SourceRun>& sources,
                               StubPlan& stub) {
  const Patch window{.form = Patch::Form::hop,
                     .at = start(run.first),
                     .size = Size{run.end.value - start(run.first).value},
                     .boundaries = runs_.boundaries(start(run.first), kHopSize)};
  return hop_into_padding(window, run, sources, stub) || hop_over_run(window, run, sources, stub);
}

bool FunctionPlanner::reaches(const Patch& window, VirtAddr hole) {
  const VirtAddr from{window.at.value + kHopSize};
  return hole >= from ? hole.value - from.value <= kReach : from.value - hole.value <= kReach + 1;
}

bool FunctionPlanner::is_clear(const Run& run, const std::vector<SourceRun>& sources,
                               VirtAddr begin, VirtAddr end) const {
  const auto apart = [&](const Run& other) {
    return other.end <= begin || end <= start(other.first);
  };
  return is_free(begin, end) && apart(run) && std::ranges::all_of(sources, apart, &SourceRun::run);
}

std::pair<std::size_t, std::size_t> FunctionPlanner::around(const Patch& window) const {
  const std::uint64_t low = window.at.value < 160 ? 0 : window.at.value - 160;
  const auto by_address = [](const CodeInstruction& i) { return i.address.value; };
  const auto first = std::ranges::lower_bound(flow_.code, low, {}, by_address);
  const auto last = std::ranges::lower_bound(flow_.code, window.at.value + 160, {}, by_address);
  return {static_cast<std::size_t>(first - flow_.code.begin()),
          static_cast<std::size_t>(last - flow_.code.begin())};
}

bool FunctionPlanner::hop_into_padding(const Patch& window, const Run& run,
                                       const std::vector<SourceRun>& sources, StubPlan& stub) {
  const auto [first, last] = around(window);
  for (std::size_t i = std::max<std::size_t>(first, 1); i < last; ++i) {
    if (!flow_.code[i - 1].ends_block() || !reaches(window, start(i))) continue;
    std::size_t next = i;
    while (next < flow_.code.size() && runs_.is_padding(next) &&
           end(next).value - start(i).value < kJumpSize) {
      ++next;
    }
    if (next == flow_.code.size() || !runs_.is_padding(next)) continue;
    if (!is_clear(run, sources, start(i), end(next))) continue;
    if (!planner_.rules_.same_row(window.at, start(i))) continue;
    Patch hole{.form = Patch::Form::jump,
               .at = start(i),
               .size = Size{end(next).value - start(i).value},
               .stub = planner_.plan_.stubs.size()};
    finish_hop(window, hole, run, sources, stub);
    return true;
  }
  return false;
}

bool FunctionPlanner::hop_over_run(const Patch& window, const Run& site_run,
                                   const std::vector<SourceRun>& sources, StubPlan& stub) {
  const auto [first, last] = around(window);
  for (std::size_t i = first; i < last; ++i) {
    const auto run = runs_.from(i, i, 2 * kJumpSize, Targets::none);
    if (!run || !may_move_too(*run, site_run, sources, std::nullopt)) continue;
    const auto hole = hole_in(window, *run);
    if (!hole || (!good_operand(*run, kJumpSize) && worst_ != Operand::broken)) continue;
    StubPlan neighbour = stub_of(*run);
    if (!can_emit(neighbour)) continue;
    const std::size_t owner = planner_.plan_.stubs.size() + 1;
    add_patch({.form = Patch::Form::jump,
               .at = start(i),
               .size = Size{hole->value - start(i).value},
               .stub = planner_.plan_.stubs.size(),
               .boundaries = runs_.boundaries(start(i), kJumpSize),
               .owner = owner});
    planner_.plan_.stubs.push_back(std::move(neighbour));
    Patch jump{.form = Patch::Form::jump,
               .at = *hole,
               .size = Size{run->end.value - hole->value},
               .stub = planner_.plan_.stubs.size(),
               .boundaries = runs_.boundaries(*hole, kJumpSize)};
    finish_hop(window, jump, site_run, sources, stub);
    return true;
  }
  return false;
}

std::optional<VirtAddr> FunctionPlanner::hole_in(const Patch& window, const Run& run) {
  for (VirtAddr hole{start(run.first).value + kJumpSize}; hole.value + kJumpSize <= run.end.value;
       ++hole.value) {
    if (!reaches(window, hole) || !planner_.rules_.same_row(window.at, hole)) continue;
    if (runs_.operand(hole, kJumpSize) <= worst_) return hole;
  }
  return std::nullopt;
}

void FunctionPlanner::finish_hop(Patch window, Patch hole, const Run& run,
                                 const std::vector<SourceRun>& sources, StubPlan& stub) {
  window.hole = hole.at;
  window.owner = hole.owner = planner_.plan_.stubs.size();
  add_patch(window);
  add_patch(hole);
  add_aimed_stub(run, sources, std::move(stub), Tactic::hop);
}

}  // namespace reprobe
