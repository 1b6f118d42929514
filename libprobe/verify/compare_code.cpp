#include "libprobe/verify/compare_code.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// Nops may stand in long rows with a sled every few bytes; each is passed a few times, as are the
// jumps of the sleds.
constexpr std::size_t kNopPasses = 16;

constexpr std::int64_t kReturnAddress = 8;

class FunctionComparer {
 public:
  FunctionComparer(const FunctionFlow& flow, const ElfFile& before, const ElfFile& after,
                   const SledOf& site_of, const SledOf& sled_of, const Substitutions& substitutions,
                   std::span<const ArrivingBranch> arrivals)
      : flow_(flow),
        before_(before),
        after_(after),
        site_of_(site_of),
        sled_of_(sled_of),
        substitutions_(substitutions),
        nops_(kNopPasses * (flow.code.size() + kMostWalkSteps)) {
    read_code();
    for (const ReadCode& code : code_) {
      if (code.reading && code.reading->target) branches_.emplace(*code.reading->target, &code);
    }
    for (const ArrivingBranch& branch : arrivals) {
      // Its own are read with it; what begins inside of its instructions makes its flow incomplete.
      const bool own = branch.source >= flow.function.start && branch.source < flow.end();
      const bool at_instruction =
          std::ranges::binary_search(code_, branch.target, {}, &ReadCode::address);
      if (!own && (branch.sure || at_instruction)) foreign_.insert(branch.target);
    }
    find_dead_filler();
  }

  ComparedCode run() {
    for (std::size_t i = 0; i < code_.size(); ++i) {
      const ReadCode& code = code_[i];
      if (same_bytes(code)) continue;
      const CodeInstruction* planned = flow_.at(code.address);
      if (planned == nullptr || planned->size != code.size) {
        add_finding(code.address, "two decoders read it differently");
        continue;
      }
      const bool inside = has_target_inside(code);
      const bool reaimed = is_target(code.address) && is_reaimed(code.address);
      if (reaimed) reaimed_.push_back(code.address);
      const bool entered = is_target(code.address) && !reaimed;
      const bool known = !entered && (visited_.contains(code.address.value) || dead_[i]);
      if (!inside && (known || meets_behind(way_to(i), code) || walks(way_to(i)))) {
        result_.proven.emplace_back(code.address, code.end());
      } else {
        add_finding(code.address, inside ? "a target inside the instruction" : why_);
      }
    }
    for (const VirtAddr at : reaimed_) {
      // A moved branch may still lead to where the way to a stub begins.
      if (entered_.contains(at.value) && !walks(at)) add_finding(at, why_);
    }
    result_.passed.assign(passed_.begin(), passed_.end());
    return std::move(result_);
  }

 private:
  // An instruction of the function. Where Zydis knows none, its end is taken from FunctionFlow:
  // it may stand unchanged beside what changed, and cannot be moved.
  struct ReadCode {
    VirtAddr address;
    Size size;
    std::optional<X86Reading> reading;

    [[nodiscard]] VirtAddr end() const { return {address.value + size.value}; }
    [[nodiscard]] bool is_nop() const { return reading && reading->operation == Operation::nop; }
  };

  void read_code() {
    const std::uint64_t end = flow_.end().value + flow_.padding.value;
    for (VirtAddr at = flow_.function.start; at.value < end;) {
      ReadCode code{at, {}, read_x86(before_, at)};
      const CodeInstruction* planned = flow_.at(at);
      if (!code.reading && planned == nullptr) break;
      code.size = code.reading ? code.reading->size : planned->size;
      at = code.end();
      code_.push_back(std::move(code));
    }
  }

  // Nops and int3 behind the end of a block that nothing reaches.
  void find_dead_filler() {
    dead_.resize(code_.size());
    for (std::size_t i = 1; flow_.complete && i < code_.size(); ++i) {
      const bool filler =
          code_[i].is_nop() || (code_[i].reading && code_[i].reading->flow == ReadFlow::trap);
      const auto& before = code_[i - 1].reading;
      const bool target = (flow_.target(code_[i].address) | own_kinds(code_[i].address)) != 0;
      dead_[i] = filler && !target && ((before && before->ends_block()) || dead_[i - 1]);
    }
  }

  // Kinds of arrival that verify has found itself.
  [[nodiscard]] TargetKinds own_kinds(VirtAddr at) const {
    return (branches_.contains(at) ? kTargetBranch : 0) |
           (foreign_.contains(at) ? kTargetForeign : 0);
  }
  [[nodiscard]] TargetKinds kinds(VirtAddr at) const {
    return (flow_.target(at) & ~kTargetSite) | own_kinds(at);
  }

  template <typename Code>
  [[nodiscard]] bool same_bytes(const Code& code) const {
    return std::ranges::equal(before_.bytes_at(code.address, code.size),
                              after_.bytes_at(code.address, code.size));
  }
  [[nodiscard]] bool is_substituted(VirtAddr at) const {
    return substitutions_.expected && substitutions_.expected(at);
  }
  // Where an instruction must be one for what stands for it, neither four bytes that happen to hold
  // an address in it are a target nor bytes around the function that look like a jump.
  [[nodiscard]] bool has_target_inside(const ReadCode& code) const {
    const auto foreign = foreign_.upper_bound(code.address);
    if (foreign != foreign_.end() && *foreign < code.end()) return true;
    const auto branch = branches_.upper_bound(code.address);
    if (branch != branches_.end() && branch->first < code.end()) return true;
    for (auto it = std::ranges::upper_bound(flow_.targets, code.address, {}, &CodeTarget::address);
         it != flow_.targets.end() && it->address < code.end(); ++it) {
      const bool certain = (it->kinds & ~(kTargetWord | kTargetDistance | kTargetForeign)) != 0;
      if (certain || !is_substituted(code.address)) return true;
    }
    return false;
  }
  // A site that execution only reaches from the instruction before it is none.
  [[nodiscard]] bool is_target(VirtAddr at) const { return kinds(at) != 0; }

  // Where the way to the instruction begins: the nops before it, a site among them, have no other.
  // Not in filler that nothing reaches, which another sled may have. A longer way than a walk can
  // take is not gone back to its start, and a row in which both ways came together before is
  // taken from there.
  [[nodiscard]] VirtAddr way_to(std::size_t i) const {
    for (unsigned steps = 0; i != 0 && steps < kMostWalkSteps; ++steps) {
      const bool nop_before = code_[i - 1].is_nop() && !dead_[i - 1];
      if (is_target(code_[i].address) || !nop_before || code_[i].address == met_) break;
      --i;
    }
    return code_[i].address;
  }

  // Only branches of the function lead there in the original, and each of them has changed. Whether
  // one leads there in the result is seen when all have been compared.
  [[nodiscard]] bool is_reaimed(VirtAddr at) const {
    // A branch that is not among the function's code is compared nowhere.
    const auto branches = branches_.equal_range(at);
    return kinds(at) == kTargetBranch && branches.first != branches.second &&
           std::all_of(branches.first, branches.second,
                       [&](const auto& branch) { return !same_bytes(*branch.second); });
  }

  [[nodiscard]] bool is_unchanged(VirtAddr at) const {
    const auto code = std::ranges::lower_bound(code_, at, {}, &ReadCode::address);
    return code != code_.end() && code->address == at && same_bytes(*code);
  }

  // Both ways from the address, over nothing but nops, come together behind the changed code, still
  // in the row of nops: a row with many sleds is not walked to its end for each of them.
  bool meets_behind(VirtAddr start, const ReadCode& changed) {
    CodeWalker now(after_, start, sled_of_, nops_);
    const auto behind = [&](VirtAddr at) { return at > changed.address && is_unchanged(at); };
    if (!now.settle(true, behind) || !behind(now.at())) return false;
    CodeWalker old(before_, start, site_of_, nops_);
    if (!old.settle(false, [&](VirtAddr at) { return at == now.at(); }) || old.at() != now.at() ||
        std::ranges::find(old.visited(), changed.address) == old.visited().end()) {
      return false;
    }
    keep_step(old, now);
    if (!keep(old, now)) return false;
    met_ = now.at();
    return true;
  }

  // Both ways from the address do the same, and so do the branches that part on the way.
  bool walks(VirtAddr start) {
    std::vector<std::pair<VirtAddr, VirtAddr>> ways{{start, start}};
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (i == kMostWalkSteps) return no("too many ways");
      if (!walk(ways[i].first, ways[i].second, ways)) return false;
    }
    return true;
  }

  bool walk(VirtAddr from, VirtAddr from_now, std::vector<std::pair<VirtAddr, VirtAddr>>& ways) {
    CodeWalker old(before_, from, site_of_, nops_);
    CodeWalker now(after_, from_now, sled_of_, nops_);
    using Passed = std::pair<std::size_t, std::size_t>;
    std::map<std::pair<VirtAddr, VirtAddr>, Passed> done;  // where both have been, sites before it
    for (;;) {
      if (!old.settle(false)) {
        const bool ends = (old.spins() || old.lost()) && !now.settle(true);
        keep_step(old, now);
        if (ends && old.spins() && now.spins()) return spin_alike(old, now);
        if (ends && old.lost() && now.lost() && same_end(old, now)) break;
        return no("the original's way does not come back");
      }
      // A guard that the original has itself is an instruction as any other.
      if (!now.settle(!old.is_guard_like())) return no("the result's way does not come back");
      keep_step(old, now);
      if (old.at() == now.at() && same_bytes(old.code())) break;
      // An endless loop: both go round it as they went before.
      const auto [before, fresh] = done.emplace(std::pair(old.at(), now.at()),
                                                Passed{old.sites().size(), now.sites().size()});
      if (!fresh) {
        old.spin_from(before->second.first);
        now.spin_from(before->second.second);
        return spin_alike(old, now);
      }
      if (is_substituted(old.at())) {
        const auto size = substitutions_.size(old.code(), now.at());
        if (!size) return no("an instruction stands for another that does something else");
        // The last instruction passed is the first of those that stand for the original's.
        result_.stands.back().now.back().end = VirtAddr{now.at().value + size->value};
        old.next();
        now.skip(*size);
        continue;
      }
      if (!same(old.code(), old.bytes(), now, ways)) return no("an instruction differs");
      if (old.code().ends_block()) break;
      old.next();
      now.next();
    }
    return keep(old, now);
  }

  // Endless loops that do the same pass the same sites in the same order, for as long as both have
  // not come round together.
  bool spin_alike(CodeWalker& old, CodeWalker& now) {
    const std::size_t both = (old.sites().size() + 1) * (now.sites().size() + 1);
    const std::size_t count =
        std::min<std::size_t>(both, std::size_t{kMostWalkSteps} * kMostWalkSteps);
    if (old.passed_for_ever(count) != now.passed_for_ever(count))
      return no("the sleds passed are not those of the sites");
    now.sites() = old.sites();
    return keep(old, now);
  }

  bool keep(CodeWalker& old, CodeWalker& now) {
    if (old.sites() != now.sites()) return no("the sleds passed are not those of the sites");
    for (const VirtAddr at : old.visited()) visited_.insert(at.value);
    for (const VirtAddr at : now.visited()) entered_.insert(at.value);
    keep_passed(now);
    keep_lowers(now);
    return true;
  }

  // Both are before the same bytes at the same place, whatever these mean.
  [[nodiscard]] bool same_end(const CodeWalker& old, const CodeWalker& now) const {
    return old.at() == now.at() && std::ranges::equal(before_.bytes_at(old.at(), kLongestReading),
                                                      after_.bytes_at(now.at(), kLongestReading));
  }

  void keep_lowers(const CodeWalker& walker) {
    for (const auto& [site, lower] : walker.lowers()) result_.lower[site.value] = lower;
    std::ranges::copy(walker.slots(), std::back_inserter(result_.slots));
  }

  void keep_step(CodeWalker& old, CodeWalker& now) {
    StandsFor step{now.take_executed(), {}, {}};
    for (const Executed& code : old.take_executed()) {
      if (code.nop) step.old_nops.push_back(code.begin);
      if (step.old.size() < kMostWalkSteps) step.old.push_back(code.begin);
    }
    result_.stands.push_back(std::move(step));
  }

  void keep_passed(const CodeWalker& walker) {
    passed_.insert(walker.visited().begin(), walker.visited().end());
  }

  // The same operation on the same operands. A call may go through a stub of sleds.
  bool same(const X86Reading& old, ByteView old_bytes, CodeWalker& now,
            std::vector<std::pair<VirtAddr, VirtAddr>>& ways) {
    const X86Reading& code = now.code();
    if (!same_but_target(old, old_bytes, code, now.bytes())) return false;
    if (old.flow == ReadFlow::call && old.target != code.target) {
      CodeWalker stub(after_, *code.target, sled_of_, nops_, kReturnAddress);
      const bool arrives = stub.settle(true, [&](VirtAddr at) { return at == *old.target; }) &&
                           stub.at() == *old.target;
      std::ranges::copy(stub.sites(), std::back_inserter(now.sites()));
      keep_lowers(stub);
      keep_passed(stub);
      std::vector<VirtAddr> call = result_.stands.back().old;
      result_.stands.push_back({stub.take_executed(), std::move(call), {}});
      return arrives;
    }
    if (old.flow == ReadFlow::conditional && old.target && code.target) {
      const std::pair way{*old.target, *code.target};
      entered_.insert(way.second.value);
      if (way.first != way.second && std::ranges::find(ways, way) == ways.end()) {
        ways.push_back(way);
      }
      return true;
    }
    return old.target == code.target;
  }

  bool no(const char* why) {
    why_ = why;
    return false;
  }

  void add_finding(VirtAddr at, const std::string& why) {
    Finding finding =
        verify_finding("verify-code", fmt::format("{:#x} in {} is not proven to do what it did: {}",
                                                  at.value, flow_.function.name, why));
    finding.site = at.value;
    result_.findings.push_back(std::move(finding));
  }

  const FunctionFlow& flow_;
  const ElfFile& before_;
  const ElfFile& after_;
  const SledOf& site_of_;
  const SledOf& sled_of_;
  const Substitutions& substitutions_;
  std::vector<ReadCode> code_;                         // of the original, without gaps
  std::vector<bool> dead_;                             // filler in it that nothing reaches
  std::multimap<VirtAddr, const ReadCode*> branches_;  // in it, by target
  std::set<VirtAddr> foreign_;                         // targets of branches of other code
  std::set<std::uint64_t> visited_;                    // in the original, on the proven ways
  std::set<std::uint64_t> entered_;  // in the result, on these and where they part
  std::set<VirtAddr> passed_;        // in the result, on these
  std::vector<VirtAddr> reaimed_;    // targets of the original whose branches changed
  std::size_t nops_;                 // and jumps that may still be passed
  std::optional<VirtAddr> met_;      // where both ways came together last, in a row of nops
  std::string why_;
  ComparedCode result_;
};

}  // namespace

ComparedCode compare_code(const FunctionFlow& flow, const ElfFile& before, const ElfFile& after,
                          const SledOf& site_of, const SledOf& sled_of,
                          const Substitutions& substitutions,
                          std::span<const ArrivingBranch> arrivals) {
  return FunctionComparer(flow, before, after, site_of, sled_of, substitutions, arrivals).run();
}

}  // namespace reprobe
