#include "libprobe/rewrite/sled/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "libprobe/rewrite/sled/displace.hpp"
#include "libprobe/rewrite/sled/sled_bytes.hpp"

namespace reprobe {

namespace {

constexpr std::uint64_t kHopSize = 2;   // jmp rel8
constexpr std::uint64_t kReach = 127;   // of a rel8 forward; one more backward
constexpr std::uint64_t kLongest = 24;  // bytes of a run: more never helps a 5-byte jump

// Why a tactic does not serve a site.
struct Reason {
  std::string words;
  std::string detail;
};
template <typename T>
using Attempt = tl::expected<T, Reason>;

tl::unexpected<Reason> no(std::string words, std::string detail = {}) {
  return tl::unexpected<Reason>(Reason{std::move(words), std::move(detail)});
}

// A run of instructions that a jump can replace, as indices into FunctionFlow::code.
struct Run {
  std::size_t first{};
  std::size_t last{};  // inclusive; the padding behind it is not counted
  VirtAddr end;        // of the replaced bytes, padding included
  bool falls_through{};
  std::vector<std::size_t> reaimed;  // instructions in it that are targets
};

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
      : planner_(planner), flow_(flow), sites_(sites) {}

  void run() {
    for (const VirtAddr site : sites_) {
      if (is_planned(site)) continue;
      if (const auto why = plan(site)) planner_.refuse(site, why->words, why->detail);
    }
  }

 private:
  [[nodiscard]] bool is_planned(VirtAddr site) const {
    return planner_.planned_.contains(site.value);
  }

  // Nothing where it worked.
  std::optional<Reason> plan(VirtAddr site) {
    const CodeInstruction* instruction = flow_.at(site);
    if (instruction == nullptr) return Reason{"not an instruction boundary", {}};
    const auto at = static_cast<std::size_t>(instruction - flow_.code.data());
    if (in_place(at)) return std::nullopt;
    if (!flow_.complete) return Reason{"control flow not understood", flow_.why_incomplete};
    if (redirect(at)) return std::nullopt;
    const auto why = displace(at);
    if (!why || hop(at)) return std::nullopt;
    may_reaim_ = true;
    const bool done = !displace(at) || hop(at);
    may_reaim_ = false;
    return done ? std::nullopt : why;
  }

  [[nodiscard]] bool is_wanted_site(VirtAddr address) const {
    return std::ranges::binary_search(sites_, address);
  }

  // May control arrive there from elsewhere? Another site is none: its own sled is in the stub.
  [[nodiscard]] bool is_target(VirtAddr address) const {
    const TargetKinds kinds = flow_.target(address);
    if (kinds == kTargetSite) return !is_wanted_site(address) || is_planned(address);
    return kinds != 0;
  }
  [[nodiscard]] std::optional<CodeTarget> target_inside(VirtAddr begin, VirtAddr end) const {
    for (auto it = std::ranges::upper_bound(flow_.targets, begin, {}, &CodeTarget::address);
         it != flow_.targets.end() && it->address < end; ++it) {
      // A site is one where an instruction starts: its sled replaces that.
      if (is_target(it->address) || flow_.at(it->address) == nullptr) return *it;
    }
    return std::nullopt;
  }
  [[nodiscard]] VirtAddr start(std::size_t i) const { return flow_.code[i].address; }
  [[nodiscard]] VirtAddr end(std::size_t i) const { return flow_.code[i].end(); }

  [[nodiscard]] bool guarded(VirtAddr site) const {
    return planner_.rules_.kind == SledKind::nop5 && planner_.rules_.needs_guard(flow_, site);
  }
  [[nodiscard]] StubStep step(std::size_t i) const {
    StubStep step{flow_.code[i], std::nullopt, false};
    if (is_wanted_site(start(i))) {
      step.sled = start(i);
      step.guarded = guarded(start(i));
    }
    return step;
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
    if (target_inside(site, end(last)) || !planner_.is_free(site, end(last))) return false;
    add_patch({.form = Patch::Form::sled, .at = site, .size = Size{end(last).value - site.value}});
    add_site({site, Tactic::in_place, std::nullopt});
    return true;
  }

  // The call or jump behind the site (and behind other sites) goes to the stub.
  bool redirect(std::size_t at) {
    std::size_t next = at;
    StubPlan stub;
    for (; next < flow_.code.size() && is_wanted_site(start(next)) && !is_planned(start(next)) &&
           flow_.code[next].kind == InstructionKind::nop;
         ++next) {
      if (next != at && is_target(start(next))) return false;
      stub.steps.push_back(step(next));
    }
    if (next == at || next == flow_.code.size()) return false;
    const CodeInstruction& branch = flow_.code[next];
    const bool call = branch.kind == InstructionKind::call;
    if (!call && branch.kind != InstructionKind::jump) return false;
    if (!branch.branch_field || branch.branch_field->width != 4 || !branch.target) return false;
    // Who comes to the call from elsewhere does not pass the site.
    if (target_inside(start(at), end(next))) return false;
    stub.lower = call ? 8 : 0;
    // What a call leaves below the stack pointer is nobody's: no red zone to protect.
    if (call) {
      for (StubStep& step : stub.steps) step.guarded = false;
    }
    stub.resume = branch.target;
    const VirtAddr field{branch.address.value + branch.branch_field->at};
    if (!planner_.is_free(field, end(next)) || !can_emit(stub)) return false;
    add_patch({.form = Patch::Form::relative,
               .at = field,
               .size = Size{4},
               .stub = planner_.plan_.stubs.size()});
    add_stub(std::move(stub), call ? Tactic::call_target : Tactic::jump_target);
    return true;
  }

  // A run of at least `size` bytes that starts with instruction `first`. A run that has a site in
  // it must reach beyond instruction `through`.
  Attempt<Run> run_from(std::size_t first, std::size_t through, std::uint64_t size) {
    Run run{first, first, start(first), true, {}};
    for (std::size_t i = first; i <= through || run.end.value - start(first).value < size; ++i) {
      if (i == flow_.code.size() || start(i) >= flow_.end()) return no("too few bytes");
      if (i != first && is_target(start(i))) {
        if (!may_reaim_ || !can_reaim(i)) return no(target_words(start(i)), at_text(start(i)));
        run.reaimed.push_back(i);
      }
      if (const auto target = target_inside(start(i), end(i))) {
        return no(target_words(target->address), at_text(target->address));
      }
      if (const auto why = why_not_displaced(flow_.code[i])) {
        return no(*why + " in the window", at_text(start(i)));
      }
      if (flow_.code[i].target && planner_.reaimed_.contains(flow_.code[i].target->value)) {
        return no("a branch to a target that has moved");
      }
      run.last = i;
      run.end = end(i);
      run.falls_through = !flow_.code[i].ends_block();
      if (run.falls_through) continue;
      if (i < through) return no("too few bytes");
      extend_into_padding(run, start(first).value + size);
      if (run.end.value - start(first).value < size) return no("too few bytes");
      break;
    }
    if (!planner_.is_free(start(first), run.end)) return no("another sled in the window");
    for (const std::size_t target : run.reaimed) {
      for (const std::size_t source : branches_to(start(target))) {
        if (start(source) < run.end && end(source) > start(first)) {
          return no(target_words(start(target)), at_text(start(target)));
        }
      }
    }
    return run;
  }

  // Nothing but branches of the function leads there.
  bool can_reaim(std::size_t i) {
    TargetKinds kinds = flow_.target(start(i));
    if (is_wanted_site(start(i)) && !is_planned(start(i))) kinds &= ~kTargetSite;
    if (kinds != kTargetBranch) return false;
    const std::vector<std::size_t> sources = branches_to(start(i));
    return !sources.empty() && std::ranges::all_of(sources, [&](std::size_t source) {
      const CodeInstruction& code = flow_.code[source];
      const bool branch =
          code.kind == InstructionKind::jump || code.kind == InstructionKind::conditional;
      return branch && code.branch_field && planner_.is_free(code.address, code.end());
    });
  }

  // Indices of the direct branches to an address.
  std::vector<std::size_t> branches_to(VirtAddr target) {
    if (branches_.empty()) {
      for (std::size_t i = 0; i < flow_.code.size(); ++i) {
        if (flow_.code[i].target) branches_.emplace(flow_.code[i].target->value, i);
      }
    }
    const auto [first, last] = branches_.equal_range(target.value);
    std::vector<std::size_t> sources;
    for (auto it = first; it != last; ++it) sources.push_back(it->second);
    return sources;
  }

  // Bytes behind a block that nothing reaches.
  void extend_into_padding(Run& run, std::uint64_t wanted_end) const {
    for (std::size_t i = run.last + 1; i < flow_.code.size() && run.end.value < wanted_end; ++i) {
      if (!is_padding(i)) return;
      run.end = end(i);
    }
  }
  [[nodiscard]] bool is_padding(std::size_t i) const {
    const CodeInstruction& code = flow_.code[i];
    const bool filler = code.kind == InstructionKind::nop || code.kind == InstructionKind::trap;
    return filler && flow_.target(start(i)) == 0 && !flow_.target_between(start(i), end(i));
  }

  [[nodiscard]] std::string target_words(VirtAddr address) const {
    const TargetKinds kinds = flow_.target(address);
    if (kinds == kTargetSite) return "another probe in the window";
    return fmt::format("a target in the window: {}", target_names(kinds & ~kTargetSite));
  }
  static std::string at_text(VirtAddr address) { return fmt::format("at {:#x}", address.value); }

  StubPlan stub_of(const Run& run) const {
    StubPlan stub;
    for (std::size_t i = run.first; i <= run.last; ++i) stub.steps.push_back(step(i));
    // A nop's sled is no instruction that ends the block.
    if (run.falls_through) stub.resume = end(run.last);
    return stub;
  }

  // Runs that hold the site, from the one that starts with it backwards: the fewer instructions
  // move, the better.
  template <typename Try>
  std::optional<Reason> each_run(std::size_t at, std::uint64_t size, Try try_run) {
    std::optional<Reason> first_reason;
    for (std::size_t first = at;; --first) {
      if (start(at).value - start(first).value > kLongest) break;
      const auto run = run_from(first, at, size);
      if (run && try_run(*run)) return std::nullopt;
      if (!first_reason) {
        first_reason = run ? Reason{"the stub cannot be written", at_text(start(at))} : run.error();
      }
      // Control must come from the instruction before, and only from there.
      if (first == 0 || is_target(start(first)) || flow_.code[first - 1].ends_block()) break;
    }
    return first_reason;
  }

  std::optional<Reason> displace(std::size_t at) {
    return each_run(at, kJumpSize, [&](const Run& run) {
      StubPlan stub = stub_of(run);
      const auto sources = short_sources(run);
      if (!sources || !can_emit(stub)) return false;
      add_patch(jump_over(run));
      add_aimed_stub(run, *sources, std::move(stub), Tactic::displace);
      return true;
    });
  }

  [[nodiscard]] Patch jump_over(const Run& run) const {
    return {.form = Patch::Form::jump,
            .at = start(run.first),
            .size = Size{run.end.value - start(run.first).value},
            .stub = planner_.plan_.stubs.size()};
  }

  // The stub of a run, and the branches that led to the targets in it.
  void add_aimed_stub(const Run& run, const std::vector<SourceRun>& sources, StubPlan stub,
                      Tactic tactic) {
    const std::size_t index = planner_.plan_.stubs.size();
    add_stub(std::move(stub), tactic);
    for (const std::size_t target : run.reaimed) {
      planner_.reaimed_.insert(start(target).value);
      for (const std::size_t source : branches_to(start(target))) {
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
      add_patch(jump_over(source.run));
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
      for (const std::size_t branch : branches_to(start(target))) {
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
    const bool may_reaim = std::exchange(may_reaim_, false);
    std::optional<Run> found;
    each_run(branch, kJumpSize, [&](const Run& run) {
      const auto apart = [&](const Run& other) {
        return run.end <= start(other.first) || other.end <= start(run.first);
      };
      const auto has_site = [&](std::size_t i) { return is_wanted_site(start(i)); };
      bool good = apart(taken) && can_emit(stub_of(run));
      for (const SourceRun& other : others) good = good && apart(other.run);
      for (std::size_t i = run.first; i <= run.last; ++i) good = good && !has_site(i);
      // The branches to the other targets must be aimed too.
      for (const std::size_t target : taken.reaimed) {
        for (const std::size_t source : branches_to(start(target))) {
          good = good && (source == branch || source < run.first || source > run.last);
        }
      }
      if (good) found = run;
      return good;
    });
    may_reaim_ = may_reaim;
    return found;
  }

  // A window too short for `jmp rel32` reaches one nearby.
  bool hop(std::size_t at) {
    bool done = false;
    each_run(at, kHopSize, [&](const Run& run) {
      StubPlan stub = stub_of(run);
      const Patch window{.form = Patch::Form::hop,
                         .at = start(run.first),
                         .size = Size{run.end.value - start(run.first).value}};
      const auto sources = short_sources(run);
      done = sources && can_emit(stub) &&
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
  [[nodiscard]] static bool overlaps(const Patch& window, VirtAddr begin, VirtAddr end) {
    return begin.value < window.at.value + window.size.value && window.at < end;
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
      while (next < flow_.code.size() && is_padding(next) &&
             end(next).value - start(i).value < kJumpSize) {
        ++next;
      }
      if (next == flow_.code.size() || !is_padding(next)) continue;
      if (overlaps(window, start(i), end(next)) || !planner_.is_free(start(i), end(next))) continue;
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
      const auto run = run_from(i, i, 2 * kJumpSize);
      if (!run || overlaps(window, start(i), run->end)) continue;
      StubPlan neighbour = stub_of(*run);
      if (std::ranges::any_of(neighbour.steps,
                              [](const StubStep& s) { return s.sled.has_value(); }))
        continue;
      if (!can_emit(neighbour)) continue;
      add_patch({.form = Patch::Form::jump,
                 .at = start(i),
                 .size = Size{kJumpSize},
                 .stub = planner_.plan_.stubs.size()});
      planner_.plan_.stubs.push_back(std::move(neighbour));
      Patch jump{.form = Patch::Form::jump,
                 .at = hole,
                 .size = Size{run->end.value - hole.value},
                 .stub = planner_.plan_.stubs.size()};
      finish_hop(window, jump, site_run, sources, stub);
      return true;
    }
    return false;
  }

  void finish_hop(Patch window, const Patch& hole, const Run& run,
                  const std::vector<SourceRun>& sources, StubPlan& stub) {
    window.hole = hole.at;
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
    planner_.used_.emplace(patch.at.value, patch.at.value + patch.size.value);
    planner_.plan_.patches.push_back(patch);
  }
  // A site that was refused may be in a later site's run.
  void add_site(const PlannedSite& site) {
    planner_.plan_.sites.push_back(site);
    planner_.planned_.insert(site.site.value);
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
  std::multimap<std::uint64_t, std::size_t> branches_;  // target -> instruction, once asked for
  bool may_reaim_{};
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

bool SledPlanner::is_free(VirtAddr begin, VirtAddr end) const {
  const auto next = used_.lower_bound(end.value);
  return next == used_.begin() || std::prev(next)->second <= begin.value;
}

SledPlan SledPlanner::finish() && {
  std::ranges::sort(plan_.sites, {}, &PlannedSite::site);
  for (auto& [site, refused] : refused_) plan_.refused.push_back(std::move(refused));
  std::ranges::sort(plan_.patches, {}, &Patch::at);
  return std::move(plan_);
}

}  // namespace reprobe
