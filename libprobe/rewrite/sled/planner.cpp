#include "libprobe/rewrite/sled/planner.hpp"

#include <algorithm>

#include "libprobe/rewrite/sled/displace.hpp"
#include "libprobe/rewrite/sled/sled_bytes.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kHopSize = 2;  // jmp rel8
constexpr std::uint64_t kReach = 127;  // of a rel8 forward; one more backward

// A run that moves because a branch in it goes to a target that moves.
struct SourceRun {
  Run run;
  std::size_t branch{};  // instruction
  std::size_t target{};  // instruction in the other run
};

}  // namespace

class FunctionPlanner {
 public:
  FunctionPlanner(SledPlanner& planner, const FunctionFlow& flow, std::span<const VirtAddr> sites)
      : planner_(planner), flow_(flow), sites_(sites), runs_(flow, sites, planner.taken_) {}

  void run() {
    for (const VirtAddr site : sites_) {
      if (runs_.is_planned(site)) continue;
      if (const auto why = plan(site)) planner_.refuse(site, why->words, why->detail);
    }
  }

 private:
  // Nothing where it worked.
  std::optional<Reason> plan(VirtAddr site) {
    const CodeInstruction* instruction = flow_.at(site);
    if (instruction == nullptr) return Reason{"not an instruction boundary", {}};
    const auto at = static_cast<std::size_t>(instruction - flow_.code.data());
    if (in_place(at)) return std::nullopt;
    if (!flow_.complete) return Reason{"control flow not understood", flow_.why_incomplete};
    if (redirect(at) || displace_neighbour(at)) return std::nullopt;
    std::optional<Reason> why;
    for (worst_ = Operand::low_byte;; worst_ = static_cast<Operand>(static_cast<int>(worst_) + 1)) {
      why = displace(at, Targets::none);
      if (!why || hop(at, Targets::none)) return std::nullopt;
      if (!displace(at, Targets::reaimed) || hop(at, Targets::reaimed)) return std::nullopt;
      if (worst_ == last_operand()) return why;
    }
  }

  // What breakpoints would break is taken only where nothing else serves.
  [[nodiscard]] Operand last_operand() const {
    return planner_.rules_.debuggable ? Operand::low_byte : Operand::broken;
  }
  [[nodiscard]] bool good_operand(const Run& run, std::uint64_t size) const {
    return runs_.operand(run, size) <= worst_;
  }

  // The instruction before or behind the site is long enough for the jump: it moves alone, and the
  // site's nop stays, with other sites' that follow it.
  bool displace_neighbour(std::size_t at) {
    std::size_t last = at;
    for (std::size_t i = at; i < flow_.code.size() && is_plain_site(i); ++i) {
      if (i != at && runs_.is_target(start(i))) break;
      last = i;
    }
    if (!is_plain_site(at)) return false;
    const std::size_t next = last + 1;
    if (next < flow_.code.size() && !runs_.is_target(start(next)) && moves_alone(next)) {
      StubPlan stub;
      for (std::size_t i = at; i <= next; ++i) stub.steps.push_back(step(i));
      if (!flow_.code[next].ends_block()) stub.resume = end(next);
      return take_neighbour(next, std::move(stub));
    }
    if (at == 0 || runs_.is_target(start(at)) || flow_.code[at - 1].ends_block() ||
        !moves_alone(at - 1)) {
      return false;
    }
    StubPlan stub;
    for (std::size_t i = at - 1; i <= last; ++i) stub.steps.push_back(step(i));
    stub.resume = end(last);
    return take_neighbour(at - 1, std::move(stub));
  }

  [[nodiscard]] bool is_plain_site(std::size_t i) const {
    return flow_.code[i].kind == InstructionKind::nop && runs_.is_wanted_site(start(i)) &&
           !runs_.is_planned(start(i));
  }
  bool moves_alone(std::size_t i) {
    if (flow_.code[i].size.value < kJumpSize || runs_.is_wanted_site(start(i))) return false;
    return runs_.from(i, i, kJumpSize, Targets::none).has_value();
  }
  bool take_neighbour(std::size_t i, StubPlan stub) {
    if (!can_emit(stub)) return false;
    const std::size_t index = planner_.plan_.stubs.size();
    add_patch({.form = Patch::Form::jump,
               .at = start(i),
               .size = flow_.code[i].size,
               .stub = index,
               .owner = index});
    add_stub(std::move(stub), Tactic::displace);
    return true;
  }

  [[nodiscard]] VirtAddr start(std::size_t i) const { return runs_.start(i); }
  [[nodiscard]] VirtAddr end(std::size_t i) const { return runs_.end(i); }
  [[nodiscard]] bool is_free(VirtAddr begin, VirtAddr end) const {
    return planner_.taken_.is_free(begin, end);
  }

  [[nodiscard]] bool guarded(VirtAddr site) const {
    return planner_.rules_.kind == SledKind::nop5 && planner_.rules_.needs_guard(flow_, site);
  }
  [[nodiscard]] StubStep step(std::size_t i) const {
    StubStep step{flow_.code[i], std::nullopt, false};
    if (runs_.is_wanted_site(start(i))) {
      step.sled = start(i);
      step.guarded = guarded(start(i));
    }
    return step;
  }

  // libbpf attaches at the five-byte nop behind a one-byte nop that a note names.
  [[nodiscard]] bool follows_site_nop(std::size_t at) const {
    if (planner_.rules_.kind != SledKind::nop5 || at == 0) return false;
    const CodeInstruction& before = flow_.code[at - 1];
    return before.kind == InstructionKind::nop && before.size.value == 1 &&
           (flow_.target(before.address) & kTargetSite) != 0;
  }

  // The nops at the site hold the sled, with no target but their first byte.
  bool in_place(std::size_t at) {
    const VirtAddr site = start(at);
    const SledKind kind = planner_.rules_.kind;
    if (guarded(site)) return false;
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

  // The call or jump behind the site (and behind other sites) goes to the stub.
  bool redirect(std::size_t at) {
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

  StubPlan stub_of(const Run& run) const {
    StubPlan stub;
    for (std::size_t i = run.first; i <= run.last; ++i) stub.steps.push_back(step(i));
    // A nop's sled is no instruction that ends the block.
    if (run.falls_through) stub.resume = end(run.last);
    return stub;
  }

  std::optional<Reason> displace(std::size_t at, Targets targets) {
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

  [[nodiscard]] Patch jump_over(const Run& run, std::size_t owner) const {
    return {.form = Patch::Form::jump,
            .at = start(run.first),
            .size = Size{run.end.value - start(run.first).value},
            .stub = planner_.plan_.stubs.size(),
            .boundaries = runs_.boundaries(start(run.first), kJumpSize),
            .owner = owner};
  }

  // The stub of a run, and the branches that led to the targets in it.
  void add_aimed_stub(const Run& run, const std::vector<SourceRun>& sources, StubPlan stub,
                      Tactic tactic) {
    const std::size_t index = planner_.plan_.stubs.size();
    add_stub(std::move(stub), tactic);
    for (const std::size_t target : run.reaimed) {
      planner_.taken_.reaimed.insert(start(target).value);
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
      moved.steps[source.branch - source.run.first].aim =
          StubPlace{index, source.target - run.first};
      planner_.plan_.stubs.push_back(std::move(moved));
    }
  }

  // Runs that hold the branches to the run's targets that are too short for another target.
  // Nothing where one cannot move.
  std::optional<std::vector<SourceRun>> short_sources(const Run& run) {
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

  std::optional<Run> run_of_branch(std::size_t branch, const Run& taken,
                                   const std::vector<SourceRun>& others) {
    std::optional<Run> found;
    runs_.each(branch, kJumpSize, Targets::none, [&](const Run& run) {
      const bool good = good_operand(run, kJumpSize) &&
                        may_move_too(run, taken, others, branch) && can_emit(stub_of(run));
      if (good) found = run;
      return good;
    });
    return found;
  }

  // Can a run without a site move beside another whose targets move? Neither it nor what else moves
  // overlaps, and it holds none of the branches to those targets but the one that it moves for.
  bool may_move_too(const Run& run, const Run& taken, const std::vector<SourceRun>& others,
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

  // A window too short for `jmp rel32` reaches one nearby.
  bool hop(std::size_t at, Targets targets) {
    bool done = false;
    runs_.each(at, kHopSize, targets, [&](const Run& run) {
      StubPlan stub = stub_of(run);
      const Patch window{.form = Patch::Form::hop,
                         .at = start(run.first),
                         .size = Size{run.end.value - start(run.first).value},
                         .boundaries = runs_.boundaries(start(run.first), kHopSize)};
      const auto sources = short_sources(run);
      done = sources && good_operand(run, kHopSize) && can_emit(stub) &&
             (hop_into_padding(window, run, *sources, stub) ||
              hop_over_run(window, run, *sources, stub));
      return done;
    });
    return done;
  }

  [[nodiscard]] static bool reaches(const Patch& window, VirtAddr hole) {
    const VirtAddr from{window.at.value + kHopSize};
    return hole >= from ? hole.value - from.value <= kReach : from.value - hole.value <= kReach + 1;
  }
  // Of a hole in padding: apart from the window and from the runs that move with it.
  [[nodiscard]] bool is_clear(const Run& run, const std::vector<SourceRun>& sources, VirtAddr begin,
                              VirtAddr end) const {
    const auto apart = [&](const Run& other) {
      return other.end <= begin || end <= start(other.first);
    };
    return is_free(begin, end) && apart(run) &&
           std::ranges::all_of(sources, apart, &SourceRun::run);
  }

  // Instructions from which a hole may be within reach.
  [[nodiscard]] std::pair<std::size_t, std::size_t> around(const Patch& window) const {
    const std::uint64_t low = window.at.value < 160 ? 0 : window.at.value - 160;
    const auto by_address = [](const CodeInstruction& i) { return i.address.value; };
    const auto first = std::ranges::lower_bound(flow_.code, low, {}, by_address);
    const auto last = std::ranges::lower_bound(flow_.code, window.at.value + 160, {}, by_address);
    return {static_cast<std::size_t>(first - flow_.code.begin()),
            static_cast<std::size_t>(last - flow_.code.begin())};
  }

  bool hop_into_padding(const Patch& window, const Run& run, const std::vector<SourceRun>& sources,
                        StubPlan& stub) {
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
      Patch hole{.form = Patch::Form::jump,
                 .at = start(i),
                 .size = Size{end(next).value - start(i).value},
                 .stub = planner_.plan_.stubs.size()};
      finish_hop(window, hole, run, sources, stub);
      return true;
    }
    return false;
  }

  // Displaces a neighbour's run of ten bytes: the second five are the hole.
  bool hop_over_run(const Patch& window, const Run& site_run, const std::vector<SourceRun>& sources,
                    StubPlan& stub) {
    const auto [first, last] = around(window);
    for (std::size_t i = first; i < last; ++i) {
      const VirtAddr hole{start(i).value + kJumpSize};
      if (!reaches(window, hole)) continue;
      const auto run = runs_.from(i, i, 2 * kJumpSize, Targets::none);
      if (!run || !may_move_too(*run, site_run, sources, std::nullopt)) continue;
      StubPlan neighbour = stub_of(*run);
      const std::uint8_t in_hole = runs_.boundaries(hole, kJumpSize);
      if ((in_hole != 0 || !good_operand(*run, kJumpSize)) && worst_ != Operand::broken) continue;
      if (!can_emit(neighbour)) continue;
      const std::size_t owner = planner_.plan_.stubs.size() + 1;
      add_patch({.form = Patch::Form::jump,
                 .at = start(i),
                 .size = Size{kJumpSize},
                 .stub = planner_.plan_.stubs.size(),
                 .boundaries = runs_.boundaries(start(i), kJumpSize),
                 .owner = owner});
      planner_.plan_.stubs.push_back(std::move(neighbour));
      Patch jump{.form = Patch::Form::jump,
                 .at = hole,
                 .size = Size{run->end.value - hole.value},
                 .stub = planner_.plan_.stubs.size(),
                 .boundaries = in_hole};
      finish_hop(window, jump, site_run, sources, stub);
      return true;
    }
    return false;
  }

  void finish_hop(Patch window, Patch hole, const Run& run, const std::vector<SourceRun>& sources,
                  StubPlan& stub) {
    window.hole = hole.at;
    window.owner = hole.owner = planner_.plan_.stubs.size();
    add_patch(window);
    add_patch(hole);
    add_aimed_stub(run, sources, std::move(stub), Tactic::hop);
  }

  [[nodiscard]] bool can_emit(const StubPlan& stub) const {
    for (const StubStep& step : stub.steps) {
      const std::int64_t lower = stub.lower + (step.guarded ? kRedZone : 0);
      if (step.sled && !planner_.rules_.arguments_fit(*step.sled, lower)) return false;
    }
    return planner_.rules_.unwinds(stub);
  }

  void add_patch(const Patch& patch) {
    planner_.taken_.used.emplace(patch.at.value, patch.at.value + patch.size.value);
    planner_.plan_.patches.push_back(patch);
  }
  // A site that was refused may be in a later site's run.
  void add_site(const PlannedSite& site) {
    planner_.plan_.sites.push_back(site);
    planner_.taken_.planned.insert(site.site.value);
    planner_.refused_.erase(site.site.value);
  }
  void add_stub(StubPlan stub, Tactic tactic) {
    for (const StubStep& step : stub.steps) {
      if (step.sled) add_site({*step.sled, tactic, planner_.plan_.stubs.size()});
    }
    planner_.plan_.stubs.push_back(std::move(stub));
  }

  SledPlanner& planner_;
  const FunctionFlow& flow_;
  std::span<const VirtAddr> sites_;
  RunFinder runs_;
  Operand worst_{Operand::broken};  // that a window may have
};

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
