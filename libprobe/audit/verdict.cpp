#include "libprobe/audit/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "libprobe/audit/runs.hpp"

namespace reprobe {
namespace {

// More one-byte nops in a row than any compiler pads with: the site could be any of them.
constexpr std::size_t kTooManyStrayNops = 2;

bool same_identity(const Note& a, const Note& b) {
  return a.provider == b.provider && a.name == b.name && a.arguments == b.arguments;
}

std::string spot(const Probe& probe) {
  if (!probe.facts.function) return fmt::format("{:#x}", probe.site.value);
  const Function& function = *probe.facts.function;
  const std::string name = function.name.empty()
                               ? fmt::format("function at {:#x}", function.start.value)
                               : function.name;
  return fmt::format("{}+{:#x}", name, probe.site.value - function.start.value);
}

// Does any probe stand on a nop? Where none does, the code is not the one that the notes were made
// for: packed, or another machine's. Then a missing nop proves nothing.
bool has_any_nop(const ProbeFile& file) {
  return std::ranges::any_of(file.probes, [](const Probe& probe) {
    return probe.facts.place == Place::executable && probe.facts.nop.kind != NopKind::none;
  });
}

// A note without a name is no probe that anybody wrote: it is more likely read wrongly.
bool nameless(const Probe& probe) { return probe.note.provider.empty() || probe.note.name.empty(); }

// Something else than the note may be what is wrong: then its address proves nothing.
bool address_in_doubt(const Probe& probe, const ProbeFile& file, bool relocatable) {
  const SiteFacts& facts = probe.facts;
  return facts.site_if_shifted || facts.site_if_not_moved || nameless(probe) ||
         (!relocatable && (probe.note.location_unresolved || !file.has_code));
}

// A proof from the address or the relocation alone that the site is not in the file, or "".
std::string proof_by_address(const Probe& probe, const ProbeFile& file, bool relocatable,
                             bool any_nop) {
  const SiteFacts& facts = probe.facts;
  if (address_in_doubt(probe, file, relocatable)) return "";
  if (facts.relocation == RelocationSays::discarded) {
    return "the kept relocation of the location is R_*_NONE: the linker discarded its section";
  }
  if (relocatable && facts.place == Place::outside) {
    return probe.note.location_unresolved ? "the relocation of the location names no section" : "";
  }
  switch (facts.place) {
    case Place::outside:
      return fmt::format("{:#x} lies in no segment", probe.site.value);
    case Place::only_segment:
      // Headers and constants share a segment with code in many files. But where a symbol or an FDE
      // covers a nop, or no section marked executable holds any, it is code that lost its mark.
      if (facts.nop.kind != NopKind::none && (facts.function || !any_nop)) return "";
      [[fallthrough]];
    case Place::not_executable:
      return fmt::format("{:#x} lies in {}", probe.site.value,
                         probe.section.empty() ? "no section" : probe.section + ", not in code");
    case Place::executable:
      return "";
  }
  return "";
}

// A proof from the bytes at the site, or "". It holds only in a file from which code was dropped:
// elsewhere a note without a nop is a hand-written one, or code that another tool changed.
std::string proof_by_bytes(const Probe& probe, const ProbeFile& file, bool relocatable,
                           bool any_nop) {
  const SiteFacts& facts = probe.facts;
  if (address_in_doubt(probe, file, relocatable) || facts.place != Place::executable) return "";
  if (!facts.has_bytes || !file.machine_known) return "";
  if (facts.relocation == RelocationSays::live) return "";
  if (facts.boundary.result == Boundary::no) {
    return fmt::format("{} is no instruction boundary: {}", spot(probe), facts.boundary.detail);
  }
  if (facts.nop.kind == NopKind::none && !facts.looks_patched && any_nop) {
    return fmt::format("no nop at {}", spot(probe));
  }
  return "";
}

// The probes at one instruction: [begin, end) of the order by site.
struct Group {
  std::size_t begin{};
  std::size_t end{};
  // Up to two members of different identity that are not proven dangling; the second list only
  // of those outside runs of dangling notes.
  std::array<std::optional<std::size_t>, 2> all;
  std::array<std::optional<std::size_t>, 2> outside_runs;
};

// A reason to doubt a site. A witness is something that no live probe shows; the others are
// only missing knowledge.
struct Doubt {
  std::string text;
  bool witness{};
};

// Everything judged so far about all probes of one file.
class Judge {
 public:
  Judge(ProbeFile& file, const ElfHeader& header)
      : probes_(file.probes),
        file_(file),
        relocatable_(header.type == ET_REL),
        dead_(file.probes.size(), false) {}

  void run() {
    find_the_dead();
    runs_ = find_dead_runs(probes_, dead_);
    group_by_site();
    for (std::size_t i = 0; i < probes_.size(); ++i) {
      if (!dead_[i]) judge_one(i);
    }
    list_aliases();
  }

 private:
  void find_the_dead() {
    const bool any_nop = has_any_nop(file_);
    for (std::size_t i = 0; i < probes_.size(); ++i) {
      bury(i, proof_by_address(probes_[i], file_, relocatable_, any_nop));
    }
    code_was_dropped_ = was_code_dropped();
    for (std::size_t i = 0; code_was_dropped_ && i < probes_.size(); ++i) {
      if (!dead_[i]) bury(i, proof_by_bytes(probes_[i], file_, relocatable_, any_nop));
    }
  }

  void bury(std::size_t i, std::string proof) {
    if (proof.empty()) return;
    dead_[i] = true;
    conclude(i, Verdict::dangling, std::move(proof));
  }

  // Linkers that drop sections also drop .stapsdt.base and then write 0 into every note.base.
  bool was_code_dropped() const {
    if (relocatable_) return false;
    if (std::ranges::find(dead_, true) != dead_.end()) return true;
    return !file_.base &&
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
      Group group{.begin = k, .end = k, .all = {}, .outside_runs = {}};
      for (; group.end < by_site_.size() && key(by_site_[group.end]) == key(by_site_[k]);
           ++group.end) {
        const std::size_t i = by_site_[group.end];
        group_of_[i] = groups_.size();
        if (dead_[i]) continue;
        remember(group.all, i);
        if (runs_[i] != DeadRun::inside) remember(group.outside_runs, i);
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

  // Another probe stands at this very instruction, and nothing explains it: identical code
  // folded by the linker leaves the names of all folded functions in .symtab.
  bool contradicting_twin(std::size_t i) const {
    const auto& function = probes_[i].facts.function;
    if (function && function->names_here >= 2) return false;
    const bool symbols_would_tell = file_.has_symtab && function && function->from_symbol;
    if (!symbols_would_tell && !code_was_dropped_) return false;
    const Group& group = groups_[group_of_[i]];
    // The impostor is the one inside a run of dangling notes: it does not cast doubt on others.
    const auto& rivals = runs_[i] == DeadRun::inside ? group.all : group.outside_runs;
    return std::ranges::any_of(rivals, [&](const std::optional<std::size_t>& rival) {
      return rival && !same_identity(probes_[*rival].note, probes_[i].note);
    });
  }

  std::span<const std::size_t> twins(std::size_t i) const {
    const Group& group = groups_[group_of_[i]];
    return std::span(by_site_).subspan(group.begin, group.end - group.begin);
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
    if (nameless(probe) && !on_nop) {
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
                      fmt::format("nop at {}, in {}, which is not marked executable", spot(probe),
                                  probe.section.empty() ? "no section" : probe.section));
    }
    if (facts.place != Place::executable) {
      return conclude(i, Verdict::unknown, "the location has no relocation");
    }
    if (!file_.machine_known) {
      return conclude(i, Verdict::unknown, "the nop of this machine is not known");
    }
    const std::vector<Doubt> doubts = doubts_about(i);
    std::vector<std::string> evidence;
    if (facts.nop.kind != NopKind::none) evidence.push_back(fmt::format("nop at {}", spot(probe)));
    for (const Doubt& doubt : doubts) evidence.push_back(doubt.text);
    const bool in_run = runs_[i] == DeadRun::inside;
    if (in_run) {
      evidence.emplace_back(
          "its neighbours in the note section are dangling, and their addresses rise through it");
    } else if (runs_[i] == DeadRun::one_sided) {
      evidence.emplace_back("the notes before or after it are dangling and close by");
    }
    if (facts.relocation == RelocationSays::live && facts.nop.kind != NopKind::none) {
      return conclude(
          i, Verdict::live,
          {fmt::format("nop at {}", spot(probe)), "the kept relocation resolves to it"});
    }
    // Two independent witnesses: the order of the notes, and the site itself.
    if (in_run && std::ranges::any_of(doubts, &Doubt::witness)) {
      return conclude(i, Verdict::dangling, std::move(evidence));
    }
    const bool doubted = !doubts.empty() || runs_[i] != DeadRun::none;
    conclude(i, doubted ? Verdict::ambiguous : Verdict::live, std::move(evidence));
  }

  // What speaks against the probe at its own site. Most of it counts only in a file from which
  // code was dropped: elsewhere nothing can have left a dangling note.
  std::vector<Doubt> doubts_about(std::size_t i) const {
    const SiteFacts& facts = probes_[i].facts;
    std::vector<Doubt> doubts;
    if (facts.nop.kind == NopKind::none && !facts.looks_patched) {
      doubts.push_back({fmt::format("no nop at {}", spot(probes_[i])), false});
    } else if (facts.nop.kind == NopKind::none) {
      doubts.push_back({fmt::format("a jump, call or trap at {}: patched by another tool, or no "
                                    "site at all",
                                    spot(probes_[i])),
                        true});
    }
    if (facts.boundary.result == Boundary::no) {
      doubts.push_back({fmt::format("{} is no instruction boundary: {}", spot(probes_[i]),
                                    facts.boundary.detail),
                        false});
    }
    if (contradicting_twin(i)) {
      doubts.push_back(
          {"another probe has this very instruction, and no folded function does", true});
    }
    if (!code_was_dropped_) return doubts;
    if (facts.nop.kind == NopKind::other) {
      doubts.push_back({"the nop is of a form that no probe macro emits", true});
    }
    if (facts.boundary.after_terminator) {
      doubts.push_back({"the nop looks like padding: it follows a return or jump", true});
    }
    if (!facts.function && (file_.has_symtab || file_.has_unwind)) {
      doubts.push_back({"no symbol and no unwind information covers the site", true});
    } else if (facts.nop.kind != NopKind::none && facts.boundary.result == Boundary::unknown) {
      doubts.push_back({fmt::format("cannot tell whether an instruction starts there: {}",
                                    facts.boundary.detail),
                        false});
    }
    if (facts.stray_nops_before >= kTooManyStrayNops) {
      doubts.push_back({"it stands in a row of one-byte nops that belong to no probe", true});
    }
    return doubts;
  }

  void list_aliases() {
    for (const Group& group : groups_) {
      std::vector<std::size_t> members;
      for (std::size_t k = group.begin; k < group.end; ++k) {
        if (probes_[by_site_[k]].verdict != Verdict::dangling) members.push_back(by_site_[k]);
      }
      if (members.size() < 2) continue;
      for (const std::size_t i : members) {
        probes_[i].alias_count = members.size() - 1;
        probes_[i].alias_of = members.front();
      }
    }
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
  std::vector<bool> dead_;
  std::vector<DeadRun> runs_;
  bool code_was_dropped_{};
  std::vector<std::size_t> by_site_;  // probe indices, sorted by site
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;  // index in groups_ per probe
};

}  // namespace

void judge(ProbeFile& file, const ElfHeader& header) { Judge(file, header).run(); }

}  // namespace reprobe
