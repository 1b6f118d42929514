// Plans the sites of one function. Part of planner.cpp, with hops.cpp.
#pragma once

#include "libprobe/rewrite/sled/displace.hpp"
#include "libprobe/rewrite/sled/planner.hpp"

namespace reprobe {

// A run that moves because a branch in it goes to a target that moves.
struct SourceRun {
  Run run;
  std::size_t branch{};  // instruction
  std::size_t target{};  // instruction in the other run
};

class FunctionPlanner {
 public:
  FunctionPlanner(SledPlanner& planner, const FunctionFlow& flow, std::span<const VirtAddr> sites)
      : planner_(planner),
        flow_(flow),
        sites_(sites),
        runs_(flow, sites, planner.taken_),
        first_patch_(planner.plan_.patches.size()),
        first_site_(planner.plan_.sites.size()),
        first_stub_(planner.plan_.stubs.size()) {}

  void run();

 private:
  static constexpr std::uint64_t kHopSize = 2;  // jmp rel8

  // All sites by what takes the least: of the ways that breakpoints leave intact those with one
  // jump, then hops; then likewise each worse operand, from `first` on.
  void plan_all(Operand first);
  // Everything that was planned for the function.
  void forget();
  void plan(VirtAddr site);
  void plan_hop(VirtAddr site);

  // What breakpoints would break is taken only where nothing else serves.
  [[nodiscard]] Operand last_operand() const;
  [[nodiscard]] bool good_operand(const Run& run, std::uint64_t size) const;

  // The instruction before or behind the site is long enough for the jump: it moves alone, and the
  // site's nop stays, with other sites' that follow it.
  bool displace_neighbour(std::size_t at);

  // Likewise, with a short jump to a hole nearby, if it is long enough for that.
  bool hop_neighbour(std::size_t at);

  [[nodiscard]] bool is_plain_site(std::size_t i) const;
  // Tries the instruction behind the sites from `at` on, then the one before, as a run of its own
  // of at least `size` bytes; `take` gets it with the stub for it.
  template <typename Take>
  bool each_neighbour(std::size_t at, std::uint64_t size, Take take);
  std::optional<Run> alone(std::size_t i, std::uint64_t size);

  // The jump takes the place of a later instruction of the run, where a breakpoint harms nothing;
  // those before it become nops.
  bool displace_late(std::size_t at);
  // Would an unwinder find the site's row at each of these instructions?
  [[nodiscard]] bool same_rows(std::size_t first, std::size_t last) const;

  [[nodiscard]] VirtAddr start(std::size_t i) const { return runs_.start(i); }
  [[nodiscard]] VirtAddr end(std::size_t i) const { return runs_.end(i); }
  [[nodiscard]] bool is_free(VirtAddr begin, VirtAddr end) const;

  [[nodiscard]] bool guarded(VirtAddr site) const;
  [[nodiscard]] StubStep step(std::size_t i) const;

  // libbpf attaches at the five-byte nop behind a one-byte nop that a note names.
  [[nodiscard]] bool follows_site_nop(std::size_t at) const;

  // The nops at the site hold the sled, with no target but their first byte.
  bool in_place(std::size_t at);

  // The call or jump behind the site (and behind other sites) goes to the stub.
  bool redirect(std::size_t at);

  StubPlan stub_of(const Run& run) const;

  std::optional<Reason> displace(std::size_t at, Targets targets);

  [[nodiscard]] Patch jump_over(const Run& run, std::size_t owner) const;

  // The stub of a run, and the branches that led to the targets in it.
  void add_aimed_stub(const Run& run, const std::vector<SourceRun>& sources, StubPlan stub,
                      Tactic tactic);

  // Runs that hold the branches to the run's targets that are too short for another target.
  // Nothing where one cannot move.
  std::optional<std::vector<SourceRun>> short_sources(const Run& run);

  std::optional<Run> run_of_branch(std::size_t branch, const Run& taken,
                                   const std::vector<SourceRun>& others);

  // Can a run without a site move beside another whose targets move? Neither it nor what else moves
  // overlaps, and it holds none of the branches to those targets but the one that it moves for.
  bool may_move_too(const Run& run, const Run& taken, const std::vector<SourceRun>& others,
                    std::optional<std::size_t> branch);

  // A window too short for `jmp rel32` reaches one nearby.
  bool hop(std::size_t at, Targets targets);

  bool hop_from(const Run& run, const std::vector<SourceRun>& sources, StubPlan& stub);

  [[nodiscard]] static bool reaches(const Patch& window, VirtAddr hole);
  // Of a hole in padding: apart from the window and from the runs that move with it.
  [[nodiscard]] bool is_clear(const Run& run, const std::vector<SourceRun>& sources, VirtAddr begin,
                              VirtAddr end) const;

  // Instructions from which a hole may be within reach.
  [[nodiscard]] std::pair<std::size_t, std::size_t> around(const Patch& window) const;

  // An unwinder that is asked at the hole must find the row of the window.
  bool hop_into_padding(const Patch& window, const Run& run, const std::vector<SourceRun>& sources,
                        StubPlan& stub);

  // Displaces a neighbour's run of ten bytes: the second five are the hole.
  bool hop_over_run(const Patch& window, const Run& site_run, const std::vector<SourceRun>& sources,
                    StubPlan& stub);

  // Room for a jump in the run, behind the run's own, to which the window reaches.
  [[nodiscard]] std::optional<VirtAddr> hole_in(const Patch& window, const Run& run);

  void finish_hop(Patch window, Patch hole, const Run& run, const std::vector<SourceRun>& sources,
                  StubPlan& stub);

  [[nodiscard]] bool can_emit(const StubPlan& stub) const;

  void add_patch(const Patch& patch);
  // A site that was refused may be in a later site's run.
  void add_site(const PlannedSite& site);
  void add_stub(StubPlan stub, Tactic tactic);

  SledPlanner& planner_;
  const FunctionFlow& flow_;
  std::span<const VirtAddr> sites_;
  RunFinder runs_;
  Operand worst_{Operand::broken};                     // that a window may have
  std::size_t first_patch_, first_site_, first_stub_;  // of the plan
  std::vector<std::uint64_t> reaimed_;                 // targets, of this function
  std::map<std::uint64_t, Reason> refused_;            // by site
};

}  // namespace reprobe
