#include "libprobe/rewrite/guards/guards.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/semaphore.hpp"
#include "libprobe/rewrite/guards/guard_plan.hpp"
#include "libprobe/rewrite/sled/sled_notes.hpp"
#include "libprobe/rewrite/stub_room.hpp"
#include "libprobe/rewrite/undoable.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> refuse(std::string why, std::string hint = {}) {
  return fail(ErrorCode::refused, "", std::move(why), std::move(hint));
}

// The record of what was replaced, in a section of its own, and the table with its header.
Result<void> finish(GuardsResult& result, SectionTable& headers, const ElfFile& file,
                    std::string_view record) {
  auto index = finish_undoable(result.plan, headers, file, record,
                               std::string(record) + ", what was replaced",
                               "the record of what was replaced");
  if (!index) return tl::unexpected(index.error());
  result.index = std::move(*index);
  return {};
}

// Counters of which one check looks at the one or the other, or whose checks share a stub: all of
// them are rewritten, or none.
class Groups {
 public:
  explicit Groups(std::size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
  }
  std::size_t find(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent_[find(a)] = find(b); }

 private:
  std::vector<std::size_t> parent_;
};

class SiteGuards {
 public:
  SiteGuards(const ElfFile& file, const ProbeFile& probes, CodeRanges ranges, UnwindWriter unwind,
             std::vector<GuardCounter> counters)
      : file_(file),
        probes_(probes),
        ranges_(std::move(ranges)),
        unwind_(std::move(unwind)),
        counters_(std::move(counters)) {}

  Result<GuardsResult> run() {
    auto done = find_uses();
    if (!done) return tl::unexpected(done.error());
    choose();
    if (std::ranges::any_of(counters_, [](const auto& c) { return c.reason.empty(); })) {
      done = write();
      if (!done) return tl::unexpected(done.error());
    }
    report();
    result_.counters = std::move(counters_);
    return std::move(result_);
  }

 private:
  Result<void> find_uses() {
    std::vector<VirtAddr> addresses;
    for (const GuardCounter& counter : counters_) addresses.push_back(counter.address);
    const CounterReferences references = find_counter_references(file_, ranges_, addresses);
    for (const Probe& probe : probes_.probes) sites_.push_back(probe.site);
    std::vector<VirtAddr> asked = sites_;
    for (const CounterReference& r : references.found) asked.push_back(r.code.address);
    std::ranges::sort(sites_);
    const auto flows = FlowReader::open(file_, asked);
    if (!flows) return tl::unexpected(flows.error());
    const GuardUses found = find_guard_uses(file_, ranges_, *flows, references, counters_);
    constexpr unsigned kMostRounds = 3;
    for (unsigned round = 1; round <= kMostRounds; ++round) {
      uses_ = found;
      for (GuardUse& use : uses_.uses) use.every_site = looks_at_every_site(use);
      plan_ = plan_guard_code(file_, *flows, uses_.uses, sites_, bytes_of(),
                              [this](const std::vector<StubPiece>& pieces) {
                                return unwind_.check(pieces).has_value();
                              });
      const std::set<std::size_t> lacking = lacking_room(found);
      if (lacking.empty()) break;
      // Those that look at the first site alone may need other room: the last round takes none.
      const bool all = round + 1 == kMostRounds;
      for (std::size_t i = 0; i < counters_.size(); ++i)
        if (all || lacking.contains(i)) counters_[i].others.clear();
    }
    return {};
  }

  [[nodiscard]] bool looks_at_every_site(const GuardUse& use) const {
    return use.form != GuardForm::address && use.counters.size() == 1 &&
           !counters_[use.counters.front()].others.empty();
  }

  // All checks of a probe look at all of its sites, or all at the first. The counters that were
  // planned with all and have a check that cannot.
  [[nodiscard]] std::set<std::size_t> lacking_room(const GuardUses& found) const {
    std::set<std::size_t> lacking;
    for (std::size_t i = 0; i < uses_.uses.size(); ++i) {
      const GuardUse& use = uses_.uses[i];
      const bool fails = found.uses[i].reason.empty() && !use.reason.empty();
      const bool shared = use.form != GuardForm::address && !use.every_site;
      const bool no_chain = use.form == GuardForm::load && use.flags_live;
      if (!fails && !shared && !no_chain) continue;
      for (const std::size_t counter : use.counters)
        if (!counters_[counter].others.empty()) lacking.insert(counter);
    }
    return lacking;
  }

  // A use may look at one of several counters: their sites differ, so that a register decides.
  [[nodiscard]] GuardBytes bytes_of() const {
    return [this](const GuardUse& use, VirtAddr at) -> Result<Bytes> {
      const GuardCounter& counter = counters_[use.counters.front()];
      const ByteView bytes = file_.bytes_at(use.code.address, use.code.size);
      if (use.form == GuardForm::address) {
        const std::uint64_t got = use.got.value_or(VirtAddr{}).value;
        return with_address(use.code, bytes, at, VirtAddr{counter.site.value - got});
      }
      SiteByte site{counter.unarmed, {}, use.flags_live, {}};
      if (!use.through_register) site.site = counter.site;
      if (use.every_site) site.others = counter.others;
      return look_at_site(use.code, bytes, site, at);
    };
  }

  // Gives each counter whose checks stay the reason.
  void choose() {
    Groups groups(counters_.size());
    std::vector<std::string> reasons;
    for (const GuardCounter& counter : counters_) reasons.push_back(counter.reason);
    const auto blame = [&](std::size_t counter, const std::string& reason) {
      if (reasons[counter].empty()) reasons[counter] = reason;
    };
    std::vector<bool> checked(counters_.size());
    for (const GuardUse& use : uses_.uses)
      for (const std::size_t counter : use.counters) checked[counter] = true;
    for (const UnknownReference& unknown : uses_.unknown) blame(unknown.counter, unknown.what);
    for (std::size_t i = 0; i < checked.size(); ++i)
      if (!checked[i]) blame(i, "nothing in the file checks the counter");
    for (const GuardUse& use : uses_.uses) {
      const GuardCounter& first = counters_[use.counters.front()];
      for (const std::size_t counter : use.counters) {
        groups.join(counter, use.counters.front());
        if (!use.reason.empty()) blame(counter, use.reason);
        if (counters_[counter].unarmed != first.unarmed)
          blame(counter, "one check looks at sites with different nops");
      }
    }
    for (const GuardStub& stub : plan_.stubs) {
      const std::size_t first = uses_.uses[*first_use(stub)].counters.front();
      for (const GuardStep& step : stub.steps)
        if (step.use) groups.join(uses_.uses[*step.use].counters.front(), first);
    }
    std::map<std::size_t, std::string> of_group;
    for (std::size_t i = 0; i < counters_.size(); ++i)
      if (!reasons[i].empty()) of_group.emplace(groups.find(i), reasons[i]);
    for (std::size_t i = 0; i < counters_.size(); ++i) {
      const auto reason = of_group.find(groups.find(i));
      if (!reasons[i].empty()) {
        counters_[i].reason = reasons[i];
      } else if (reason != of_group.end()) {
        counters_[i].reason = "shares checks with a counter that stays: " + reason->second;
      }
    }
  }

  [[nodiscard]] static std::optional<std::size_t> first_use(const GuardStub& stub) {
    const auto step =
        std::ranges::find_if(stub.steps, [](const GuardStep& s) { return s.use.has_value(); });
    return step->use;
  }

  [[nodiscard]] bool stays(const GuardUse& use) const {
    return !counters_[use.counters.front()].reason.empty();
  }

  Result<void> write() {
    auto headers = SectionTable::of(file_);
    if (!headers) return tl::unexpected(headers.error());
    std::erase_if(plan_.stubs,
                  [this](const GuardStub& stub) { return stays(uses_.uses[*first_use(stub)]); });
    if (!plan_.stubs.empty()) {
      auto done = write_stubs(*headers);
      if (!done) return done;
    }
    const GuardBytes bytes = bytes_of();
    for (const std::size_t i : plan_.in_place) {
      const GuardUse& use = uses_.uses[i];
      if (stays(use)) continue;
      auto replaced = bytes(use, use.code.address);
      if (!replaced) return tl::unexpected(replaced.error());
      auto done = replace(use.code.address, std::move(*replaced), "a check of a probe's site");
      if (!done) return done;
    }
    auto done = clear_notes();
    if (!done) return done;
    if (result_.plan.empty()) return {};
    return finish(result_, *headers, file_, kGuardsAtSite);
  }

  Result<void> write_stubs(SectionTable& headers) {
    const GuardBytes bytes = bytes_of();
    const auto emit = [&](VirtAddr at) {
      return emit_guard_stubs(file_, plan_.stubs, uses_.uses, bytes, at);
    };
    const VirtAddr near = plan_.stubs.front().begin;
    const auto draft = emit(near);
    if (!draft) return tl::unexpected(draft.error());
    const auto room =
        place_stubs(result_.plan, headers, file_, unwind_,
                    {[&](VirtAddr where) -> Result<StubCode> {
                       auto emitted = emit(where);
                       if (!emitted) return tl::unexpected(emitted.error());
                       return StubCode{std::move(emitted->code), std::move(emitted->unwind)};
                     },
                     near, Size{draft->code.size()}});
    if (!room) return tl::unexpected(room.error());
    auto emitted = emit(room->address);
    if (!emitted) return tl::unexpected(emitted.error());
    for (auto& [begin, jump] : emitted->jumps) {
      auto done = replace(begin, std::move(jump), "the way to a check of a probe's site");
      if (!done) return done;
    }
    return {};
  }

  Result<void> replace(VirtAddr at, Bytes bytes, std::string why) {
    const auto offset = file_.offset_of(at);
    if (!offset) return fail(ErrorCode::internal, "", "an address without bytes in the file");
    return result_.plan.replace(file_.source(), *offset, std::move(bytes), std::move(why));
  }

  // No tracer raises a counter that nobody reads.
  Result<void> clear_notes() {
    constexpr std::uint64_t kWord = 8;  // of a descriptor: location, base, semaphore
    for (const GuardCounter& counter : counters_) {
      if (!counter.reason.empty()) continue;
      for (const std::size_t i : counter.probes) {
        const Note& note = probes_.probes[i].note;
        const FileOffset field{note.file_offset.value + note.desc + 2 * kWord};
        auto done = result_.plan.replace(file_.source(), field, Bytes(kWord),
                                         "the probe's note names no counter");
        if (!done) return done;
      }
    }
    return {};
  }

  void report() {
    std::map<std::uint64_t, bool> in_stub;
    for (const GuardStub& stub : plan_.stubs)
      for (const GuardStep& step : stub.steps) in_stub[step.code.address.value] = true;
    for (const GuardUse& use : uses_.uses) {
      if (use.form == GuardForm::address) continue;
      const std::size_t counter = use.counters.front();
      GuardOutcome outcome{counter, use.code.address, to_string(use.form), "", ""};
      if (stays(use)) {
        outcome.reason = use.reason.empty() ? counters_[counter].reason : use.reason;
      } else {
        outcome.tactic = in_stub.contains(use.code.address.value) ? "stub" : "in-place";
      }
      result_.outcomes.push_back(std::move(outcome));
    }
    for (const UnknownReference& unknown : uses_.unknown)
      result_.outcomes.push_back({unknown.counter, unknown.at, "unknown", "", unknown.what});
    std::ranges::sort(result_.outcomes, {},
                      [](const GuardOutcome& o) { return std::tuple(o.counter, o.at, o.what); });
    const auto same = [](const GuardOutcome& a, const GuardOutcome& b) {
      return a.counter == b.counter && a.at == b.at && a.what == b.what;
    };
    auto& all = result_.outcomes;
    all.erase(std::unique(all.begin(), all.end(), same), all.end());
  }

  const ElfFile& file_;
  const ProbeFile& probes_;
  CodeRanges ranges_;
  UnwindWriter unwind_;
  std::vector<GuardCounter> counters_;
  std::vector<VirtAddr> sites_;  // of all probes, ascending
  GuardUses uses_;
  GuardPlan plan_;
  GuardsResult result_;
};

Result<GuardsResult> plan_site(const ElfFile& file, const ProbeFile& probes,
                               std::vector<GuardCounter> counters) {
  if (file.header().machine != EM_X86_64 || !file.header().is64)
    return refuse("only x86-64 is understood");
  if (file.section(kUndoSection) != nullptr)
    return refuse("the file has sleds, whose stubs hold checks", "reprobe sled --undo comes first");
  const auto notes = movable_notes(file, probes);
  if (!notes) return tl::unexpected(notes.error());
  auto ranges = CodeRanges::open(file);
  if (!ranges) return refuse("only x86-64 is understood");
  auto unwind = UnwindWriter::open(file);
  if (!unwind) return tl::unexpected(unwind.error());
  return SiteGuards(file, probes, std::move(*ranges), std::move(*unwind), std::move(counters))
      .run();
}

// Why the counter cannot be preset, or "".
std::string why_not_on(const ElfFile& file, const SemaphoreFacts& facts) {
  if (facts.copied) return "the counter belongs to another file";
  const ByteView bytes = file.bytes_at(facts.address, Size{kCounterSize});
  // Damaged headers may place it here and there.
  if (!facts.offset || bytes.size() < kCounterSize || file.offset_of(facts.address) != facts.offset)
    return "the counter has no bytes in the file";
  const auto view = file.source().slice(*facts.offset, Size{kCounterSize}, "a counter");
  if (!view || !std::ranges::equal(*view, bytes)) return "the counter has no bytes in the file";
  if (load_uint(bytes, 0, kCounterSize, file.header().order) != 0) return "the counter is not 0";
  return "";
}

Result<GuardsResult> plan_on(const ElfFile& file, const ProbeFile& probes,
                             std::vector<GuardCounter> counters) {
  GuardsResult result;
  auto headers = SectionTable::of(file);
  if (!headers) return tl::unexpected(headers.error());
  const auto facts = read_semaphores(file, probes);
  for (std::size_t i = 0; i < counters.size(); ++i) {
    GuardCounter& counter = counters[i];
    const SemaphoreFacts& fact = facts[counter.probes.front()];
    counter.reason = why_not_on(file, fact);
    const auto overlaps = [&](std::size_t other) {
      const std::uint64_t a = counter.address.value, b = counters[other].address.value;
      return std::max(a, b) - std::min(a, b) < kCounterSize;
    };
    if ((i != 0 && overlaps(i - 1)) || (i + 1 < counters.size() && overlaps(i + 1)))
      counter.reason = "the counter overlaps another";
    GuardOutcome outcome{i, counter.address, "counter", "", counter.reason};
    if (counter.reason.empty()) {
      outcome.tactic = "in-place";
      Bytes one(kCounterSize);
      store_uint(one, 0, kCounterSize, file.header().order, 1);
      auto done = result.plan.replace(file.source(), *fact.offset, std::move(one),
                                      "the counter is raised from the start");
      if (!done) return tl::unexpected(done.error());
    }
    result.outcomes.push_back(std::move(outcome));
  }
  result.counters = std::move(counters);
  if (result.plan.empty()) return result;
  if (auto done = finish(result, *headers, file, kGuardsOn); !done)
    return tl::unexpected(done.error());
  return result;
}

}  // namespace

const Section* guards_record(const ElfFile& file) {
  const Section* site = file.section(kGuardsAtSite);
  return site != nullptr ? site : file.section(kGuardsOn);
}

Result<GuardsResult> plan_guards(const ElfFile& file, const ProbeFile& probes,
                                 const GuardsOptions& options) {
  if (const Section* record = guards_record(file)) {
    const bool same = record->name == (options.to == GuardsTo::site ? kGuardsAtSite : kGuardsOn);
    if (!same)
      return refuse("its guards were rewritten in another way", "--to restore comes first");
    GuardsResult result;
    result.already = true;
    return result;
  }
  if (file.header().type != ET_EXEC && file.header().type != ET_DYN)
    return refuse("not a linked program or library");
  if (probes.debug_file)
    return refuse("the code is not in this file", "run reprobe guards on the program itself");
  std::vector<GuardCounter> counters = read_counters(file, probes, options.selected);
  if (options.to == GuardsTo::site) refuse_exported(file, options.exported, counters);
  auto result = options.to == GuardsTo::site ? plan_site(file, probes, std::move(counters))
                                             : plan_on(file, probes, std::move(counters));
  if (!result || !result->plan.empty()) return result;
  // As fix and sled do: an index that does not say what the notes say is renewed all the same.
  auto index = renew_index(result->plan, file);
  if (!index) return tl::unexpected(index.error());
  result->index = std::move(*index);
  return result;
}

}  // namespace reprobe
