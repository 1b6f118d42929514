#include "libprobe/audit/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "libprobe/audit/aliases.hpp"
#include "libprobe/audit/note_order.hpp"
#include "libprobe/audit/proofs.hpp"
#include "libprobe/audit/runs.hpp"

namespace reprobe {
namespace {

// More one-byte nops in a row than any compiler pads with: the site could be any of them.
constexpr std::size_t kTooManyStrayNops = 2;

bool same_identity(const Note& a, const Note& b) {
  return a.provider == b.provider && a.name == b.name && a.arguments == b.arguments;
}

// The operands without the signs of their sizes ("-4@%edi"): of folded code they are the same.
std::string unsigned_arguments(const Note& note) {
  std::string text = note.arguments;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '-' && (at == 0 || text[at - 1] == ' ')) text.erase(at, 1);
  }
  return text;
}

// Identical code folding can put both at one instruction.
bool may_be_folded(const Note& a, const Note& b) {
  return unsigned_arguments(a) == unsigned_arguments(b);
}

// What stands at the site.
std::string nop_text(const Probe& probe) {
  return probe.facts.nop.kind == NopKind::other
             ? fmt::format("nop of {} bytes at {}", probe.facts.nop.size, spot(probe))
             : fmt::format("nop at {}", spot(probe));
}

std::string unsure(const SiteFacts& facts) {
  return fmt::format("cannot tell whether an instruction starts there: {}", facts.boundary.detail);
}

// The probes at one instruction: [begin, end) of the order by site.
struct Group {
  std::size_t begin{};
  std::size_t end{};
  // Up to two members of different identity that are not proven dangling; the second list only
  // of those that stand among live notes.
  std::array<std::optional<std::size_t>, 2> all;
  std::array<std::optional<std::size_t>, 2> credible;
};

// Everything judged so far about all probes of one file.
class Judge {
 public:
  Judge(ProbeFile& file, const ElfHeader& header)
      : probes_(file.probes),
        file_(file),
        relocatable_(header.type == ET_REL),
        proofs_(file, relocatable_),
        dead_(file.probes.size(), false) {}

  void run() {
    find_the_dead();
    group_by_site();
    for (std::size_t i = 0; i < probes_.size(); ++i) {
      if (!dead_[i]) judge_one(i);
    }
  }

 private:
  void find_the_dead() {
    for (std::size_t i = 0; i < probes_.size(); ++i) bury(i, proofs_.by_address(probes_[i]));
    code_was_dropped_ = !relocatable_ && std::ranges::find(dead_, true) != dead_.end();
    code_may_be_dropped_ = code_was_dropped_ || base_was_dropped();
    for (std::size_t i = 0; code_may_be_dropped_ && i < probes_.size(); ++i) {
      if (!dead_[i]) bury(i, proofs_.by_boundary(probes_[i]));
    }
    compare_with_neighbours();
    if (!code_was_dropped_) return;
    // The more is proven, the more the neighbours tell of the rest.
    constexpr int kPasses = 2;
    for (int pass = 0; pass < kPasses; ++pass) {
      for (std::size_t i = 0; i < probes_.size(); ++i) {
        if (!dead_[i]) bury(i, proofs_.by_missing_nop(probes_[i], orders_[i], runs_[i]));
      }
      compare_with_neighbours();
    }
  }

  void compare_with_neighbours() {
    runs_ = find_dead_runs(probes_, dead_);
    orders_ = find_note_order(probes_, dead_, runs_);
  }

  void bury(std::size_t i, std::string proof) {
    if (proof.empty()) return;
    dead_[i] = true;
    conclude(i, Verdict::dangling, std::move(proof));
  }

  // Linkers that drop sections also drop .stapsdt.base and then write 0 into every note.base.
  bool base_was_dropped() const {
    return !relocatable_ && !file_.base &&
           std::ranges::all_of(probes_, [](const Probe& p) { return p.note.base.value == 0; });
  }

  void group_by_site() {
    by_site_.resize(probes_.size());
    std::iota(by_site_.begin(), by_site_.end(), std::size_t{0});
    const auto key = [this](std::size_t i) {
      return CodeAddress{probes_[i].site, probes_[i].note.location_section};
    };
    std::ranges::stable_sort(by_site_, {}, key);
    group_of_.resize(probes_.size());
    for (std::size_t k = 0; k < by_site_.size();) {
      Group group{.begin = k, .end = k, .all = {}, .credible = {}};
      for (; group.end < by_site_.size() && key(by_site_[group.end]) == key(by_site_[k]);
           ++group.end) {
        const std::size_t i = by_site_[group.end];
        group_of_[i] = groups_.size();
        if (dead_[i]) continue;
        remember(group.all, i);
        if (is_credible(i)) remember(group.credible, i);
      }
      k = group.end;
      groups_.push_back(group);
    }
  }

  // Keeps the first probe and the first that differs from it: enough to answer whether any
  // member of the group differs from a given one, however many there are.
  void remember(std::array<std::optional<std::size_t>, 2>& two, std::size_t i) const {
    if (!two[0]) {
      two[0] = i;
    } else if (!two[1] && !same_identity(probes_[*two[0]].note, probes_[i].note)) {
      two[1] = i;
    }
  }

  bool is_out_of_order(std::size_t i) const {
    return orders_[i] == NoteOrder::out_of_order || orders_[i] == NoteOrder::far_away;
  }

  // Does the note stand where the live notes around it let it be expected?
  bool is_credible(std::size_t i) const {
    return runs_[i] != DeadRun::inside && !is_out_of_order(i);
  }

  // Another probe stands at this very instruction. Identical code folding explains it: the names of
  // all folded functions in .symtab, or (gold and mold drop all names but one) the same operands.
  // Where nothing was dropped, no dangling note can be what stands there.
  bool contradicting_twin(std::size_t i) const {
    const auto& function = probes_[i].facts.function;
    if ((function && function->names_here >= 2) || !code_may_be_dropped_) return false;
    const Group& group = groups_[group_of_[i]];
    const Note& own = probes_[i].note;
    // The impostor is the one that does not fit among the live notes: it casts no doubt on others.
    const bool credible = is_credible(i);
    const auto& rivals = credible ? group.credible : group.all;
    return std::ranges::any_of(rivals, [&](const std::optional<std::size_t>& rival) {
      return rival && !same_identity(probes_[*rival].note, own) &&
             !(credible && may_be_folded(probes_[*rival].note, own));
    });
  }

  void judge_one(std::size_t i) {
    const Probe& probe = probes_[i];
    const SiteFacts& facts = probe.facts;
    if (facts.place == Place::executable && !facts.has_bytes) {
      return conclude(i, Verdict::unknown, "the code at the site is not in this file");
    }
    if (!relocatable_ && probe.note.location_unresolved) {
      return conclude(i, Verdict::unknown, "the dynamic linker writes the location");
    }
    const bool on_nop = facts.place == Place::executable && facts.nop.kind != NopKind::none;
    if (is_nameless(probe) && !on_nop) {
      return conclude(i, Verdict::ambiguous,
                      "the note has no provider or no name: it may be read wrongly");
    }
    if (!relocatable_ && !file_.has_code) {
      return conclude(i, Verdict::unknown, "the file has no code");
    }
    if (facts.site_if_shifted) {
      return conclude(i, Verdict::ambiguous,
                      file_.shift.distance != 0
                          ? "the file may have been moved after the link: " + file_.shift.evidence
                          : "it would be a site with the distance that other notes' bases have");
    }
    if (facts.site_if_not_moved) {
      return conclude(i, Verdict::ambiguous,
                      fmt::format("no nop at {}, but one at {:#x}, the location without the base",
                                  spot(probe), probe.note.location.value));
    }
    if (facts.place == Place::only_segment) {
      return conclude(i, Verdict::ambiguous,
                      fmt::format("{}, in {}, which is not marked executable",
                                  facts.nop.kind != NopKind::none ? nop_text(probe)
                                                                  : "no nop at " + spot(probe),
                                  probe.section.empty() ? "no section" : probe.section));
    }
    if (facts.place != Place::executable) {
      return conclude(i, Verdict::unknown, "the location has no relocation");
    }
    if (!file_.machine_known) {
      return conclude(i, Verdict::unknown, "the nop of this machine is not known");
    }
    if (facts.relocation == RelocationSays::live && facts.nop.kind != NopKind::none) {
      return conclude(i, Verdict::live, {nop_text(probe), "the kept relocation resolves to it"});
    }
    std::vector<std::string> doubts = doubts_about(i);
    add_neighbours(i, doubts);
    const Verdict verdict = doubts.empty() ? Verdict::live : Verdict::ambiguous;
    if (facts.nop.kind != NopKind::none) doubts.insert(doubts.begin(), nop_text(probe));
    conclude(i, verdict, std::move(doubts));
  }

  // What the notes before and behind it speak against it.
  void add_neighbours(std::size_t i, std::vector<std::string>& doubts) const {
    if (runs_[i] == DeadRun::inside) {
      doubts.emplace_back(
          "its neighbours in the note section are dangling, and their addresses rise through it");
    } else if (runs_[i] == DeadRun::one_sided) {
      doubts.emplace_back("the notes before or after it are dangling and close by");
    }
    // After a repair nothing tells that code was dropped, but the order of what is left still does.
    // Where no function is known, nothing can show that the site is inside an instruction.
    if ((code_was_dropped_ || !probes_[i].facts.function) && is_out_of_order(i)) {
      doubts.emplace_back("it is out of order among the live notes");
    }
  }

  // What speaks against the probe at its own site. Most of it counts only in a file from which
  // code was dropped: elsewhere nothing can have left a dangling note.
  std::vector<std::string> doubts_about(std::size_t i) const {
    const Probe& probe = probes_[i];
    const SiteFacts& facts = probe.facts;
    const bool on_nop = facts.nop.kind != NopKind::none;
    std::vector<std::string> doubts;
    if (!on_nop) {
      doubts.push_back(
          facts.looks_patched
              ? fmt::format(
                    "a jump, call or trap at {}: patched by another tool, or no site at all",
                    spot(probe))
              : fmt::format("no nop at {}", spot(probe)));
    } else if (facts.boundary.result == Boundary::no) {
      doubts.push_back(
          fmt::format("{} is no instruction boundary: {}", spot(probe), facts.boundary.detail));
    } else if (facts.boundary.inside) {
      // In any file: a breakpoint there changes what the program does.
      doubts.push_back(unsure(facts));
    }
    if (contradicting_twin(i)) {
      doubts.emplace_back(
          "another probe has this very instruction: folded code, or the one or the other is not in "
          "the file");
    }
    if (!code_was_dropped_ || !on_nop) return doubts;
    if (facts.nop.kind == NopKind::other && facts.boundary.before_aligned_target) {
      doubts.emplace_back("the nop looks like padding: it ends where an aligned block begins");
    } else if (facts.boundary.after_terminator) {
      doubts.emplace_back("the nop looks like padding: it follows a return or jump");
    }
    if (!facts.function && (file_.has_symtab || file_.has_unwind)) {
      doubts.emplace_back("no symbol and no unwind information covers the site");
    } else if (facts.boundary.result == Boundary::unknown && !facts.boundary.inside) {
      doubts.push_back(unsure(facts));
    }
    if (facts.stray_nops_before >= kTooManyStrayNops && !facts.stray_nops_at_entry) {
      doubts.emplace_back("it stands in a row of one-byte nops that belong to no probe");
    }
    return doubts;
  }

  void conclude(std::size_t i, Verdict verdict, std::string evidence) {
    conclude(i, verdict, std::vector<std::string>{std::move(evidence)});
  }
  void conclude(std::size_t i, Verdict verdict, std::vector<std::string> evidence) {
    probes_[i].verdict = verdict;
    probes_[i].evidence = std::move(evidence);
  }

  std::vector<Probe>& probes_;
  const ProbeFile& file_;
  bool relocatable_;
  Proofs proofs_;
  std::vector<bool> dead_;
  std::vector<DeadRun> runs_;
  std::vector<NoteOrder> orders_;
  bool code_was_dropped_{};           // a note is proven dangling by its address or its relocation
  bool code_may_be_dropped_{};        // or the file looks as linkers leave it that drop sections
  std::vector<std::size_t> by_site_;  // probe indices, sorted by site
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;  // index in groups_ per probe
};

}  // namespace

void judge(ProbeFile& file, const ElfHeader& header) {
  Judge(file, header).run();
  list_aliases(file);
}

}  // namespace reprobe
