#include "libprobe/verify/compare_code.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>

#include "libprobe/code/decoder.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

constexpr Size kLongest{15};
// Far more than a stub holds, in jumps and in instructions that do something: a way that does not
// come back by then is not proven.
constexpr unsigned kMostSteps = 256;
// Nops may stand in long rows, each of which is passed a few times.
constexpr std::size_t kNopPasses = 16;

constexpr std::int64_t kGuard = 128;
constexpr std::int64_t kReturnAddress = 8;
// What a guarded sled has around it. The two have no effect together.
constexpr std::array<std::uint8_t, 5> kLower{0x48, 0x8d, 0x64, 0x24, 0x80};  // lea -128(%rsp),%rsp
constexpr std::array<std::uint8_t, 8> kRaise{0x48, 0x8d, 0xa4, 0x24,
                                             0x80, 0x00, 0x00, 0x00};  // lea 128(%rsp),%rsp

bool equals(ByteView bytes, std::span<const std::uint8_t> codes) {
  return std::ranges::equal(bytes, codes, {},
                            [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
}

// The condition code of 70+cc rel8 and 0f 80+cc rel32: the last opcode byte.
std::uint8_t condition(const CodeInstruction& code, ByteView bytes) {
  return std::to_integer<std::uint8_t>(bytes[code.branch_field->at - 1]) & 0xf;
}

// The bytes without the fields that depend on the instruction's own address.
Bytes masked(const CodeInstruction& code, ByteView bytes) {
  Bytes result(bytes.begin(), bytes.end());
  for (const auto& field : {code.branch_field, code.rip_field}) {
    if (!field || field->at + field->width > result.size()) continue;
    std::fill_n(result.begin() + static_cast<std::ptrdiff_t>(field->at), field->width,
                std::byte{0});
  }
  return result;
}

// Follows execution in one file. Nops and direct jumps have no effect but to lead on; the sites
// (or their sleds) that they pass are kept.
class Walker {
 public:
  // `nops`: how many may still be passed in the function. `lower`: bytes by which the stack pointer
  // is lower than in the original.
  Walker(const ElfFile& file, const Decoder& decoder, VirtAddr at, const SledOf& site_at,
         std::size_t& nops, std::int64_t lower = 0)
      : file_(file), decoder_(decoder), site_at_(site_at), nops_(nops), at_(at), lower_(lower) {}

  // To the next instruction that does something, or to `goal`. False: there is none.
  bool settle(bool guards, std::optional<VirtAddr> goal = {}) {
    std::map<VirtAddr, std::size_t> passed;  // since the call: sites before each address
    while (steps_ < kMostSteps) {
      if (at_ == goal) return !lowered_;
      const auto [first, fresh] = passed.emplace(at_, sites_.size());
      if (!fresh) {
        spins_from_ = first->second;
        return false;
      }
      if (const auto site = site_at_(at_)) {
        sites_.push_back(*site);
        lowers_.emplace_back(*site, lower_ + (lowered_ ? kGuard : 0));
      }
      code_ = decoder_.decode_operands(file_.bytes_at(at_, kLongest), at_);
      lost_ = !code_ || code_->opaque;
      if (lost_) return false;
      visited_.push_back(at_);
      if (code_->kind == InstructionKind::nop || (guards && is_guard())) {
        if (nops_ == 0) return false;
        --nops_;
        at_ = code_->end();
      } else if (code_->kind == InstructionKind::jump && code_->target) {
        at_ = *code_->target;
        ++steps_;
      } else {
        return !lowered_;
      }
    }
    return false;
  }
  void next() { skip(code_->size); }
  void skip(Size size) {
    at_.value += size.value;
    ++steps_;
  }

  // settle() found a loop in which nothing is done but sites are passed: the sites before it, and
  // those that it passes for ever.
  void spin_from(std::size_t sites) { spins_from_ = sites; }
  [[nodiscard]] bool spins() const { return spins_from_.has_value() && !lowered_; }
  // The first `count` sites of a loop that spins.
  [[nodiscard]] std::vector<VirtAddr> passed_for_ever(std::size_t count) const {
    std::vector<VirtAddr> sites = sites_;
    const std::size_t period = sites_.size() - *spins_from_;
    while (period != 0 && sites.size() < count) sites.push_back(sites[sites.size() - period]);
    if (sites.size() > count) sites.resize(count);
    return sites;
  }

  // settle() ended at code that cannot be read, which the walker stands before.
  [[nodiscard]] bool lost() const { return lost_ && !lowered_; }
  [[nodiscard]] VirtAddr at() const { return at_; }
  [[nodiscard]] const CodeInstruction& code() const { return *code_; }
  [[nodiscard]] ByteView bytes() const { return file_.bytes_at(code_->address, code_->size); }
  [[nodiscard]] std::vector<VirtAddr>& sites() { return sites_; }
  [[nodiscard]] const std::vector<VirtAddr>& visited() const { return visited_; }
  [[nodiscard]] const std::vector<std::pair<VirtAddr, std::int64_t>>& lowers() const {
    return lowers_;
  }

 private:
  // Lower, nops, raise: in this order.
  bool is_guard() {
    const ByteView bytes = file_.bytes_at(at_, code_->size);
    if (!equals(bytes, lowered_ ? std::span<const std::uint8_t>(kRaise)
                                : std::span<const std::uint8_t>(kLower))) {
      return false;
    }
    lowered_ = !lowered_;
    return true;
  }

  const ElfFile& file_;
  const Decoder& decoder_;
  const SledOf& site_at_;
  std::size_t& nops_;
  VirtAddr at_;
  std::int64_t lower_;
  std::vector<std::pair<VirtAddr, std::int64_t>> lowers_;
  std::optional<CodeInstruction> code_;
  bool lowered_{};
  bool lost_{};
  std::optional<std::size_t> spins_from_;
  unsigned steps_{};
  std::vector<VirtAddr> sites_;
  std::vector<VirtAddr> visited_;
};

class FunctionComparer {
 public:
  FunctionComparer(const FunctionFlow& flow, const ElfFile& before, const ElfFile& after,
                   const Decoder& decoder, const SledOf& site_of, const SledOf& sled_of,
                   const Substitutions& substitutions)
      : flow_(flow),
        before_(before),
        after_(after),
        decoder_(decoder),
        site_of_(site_of),
        sled_of_(sled_of),
        substitutions_(substitutions),
        dead_(flow.dead_filler()),
        nops_(kNopPasses * (flow.code.size() + kMostSteps)) {
    for (const CodeInstruction& code : flow.code) {
      if (code.target) branches_.emplace(*code.target, &code);
    }
  }

  ComparedCode run() {
    for (std::size_t i = 0; i < flow_.code.size(); ++i) {
      const CodeInstruction& code = flow_.code[i];
      if (same_bytes(code)) continue;
      const bool inside = has_target_inside(code);
      const bool reaimed = is_target(code.address) && is_reaimed(code.address);
      if (reaimed) reaimed_.push_back(code.address);
      const bool entered = is_target(code.address) && !reaimed;
      const bool known = !entered && (visited_.contains(code.address.value) || dead_[i]);
      if (!inside && (known || walks(way_to(i)))) {
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
  [[nodiscard]] bool same_bytes(const CodeInstruction& code) const {
    return std::ranges::equal(before_.bytes_at(code.address, code.size),
                              after_.bytes_at(code.address, code.size));
  }
  [[nodiscard]] bool is_substituted(VirtAddr at) const {
    return substitutions_.expected && substitutions_.expected(at);
  }
  // Where an instruction must be one for what stands for it, neither four bytes that happen to hold
  // an address in it are a target nor bytes around the function that look like a jump.
  [[nodiscard]] bool has_target_inside(const CodeInstruction& code) const {
    for (auto it = std::ranges::upper_bound(flow_.targets, code.address, {}, &CodeTarget::address);
         it != flow_.targets.end() && it->address < code.end(); ++it) {
      const bool certain = (it->kinds & ~(kTargetWord | kTargetForeign)) != 0;
      if (certain || !is_substituted(code.address)) return true;
    }
    return false;
  }
  // A site that execution only reaches from the instruction before it is none.
  [[nodiscard]] bool is_target(VirtAddr at) const { return (flow_.target(at) & ~kTargetSite) != 0; }

  // Where the way to the instruction begins: the nops before it, a site among them, have no other.
  // Not in filler that nothing reaches, which another sled may have. A longer way than a walk can
  // take is not gone back to its start.
  [[nodiscard]] VirtAddr way_to(std::size_t i) const {
    for (unsigned steps = 0; i != 0 && steps < kMostSteps; ++steps) {
      const bool nop_before = flow_.code[i - 1].kind == InstructionKind::nop && !dead_[i - 1];
      if (is_target(flow_.code[i].address) || !nop_before) break;
      --i;
    }
    return flow_.code[i].address;
  }

  // Only branches of the function lead there in the original, and each of them has changed. Whether
  // one leads there in the result is seen when all have been compared.
  [[nodiscard]] bool is_reaimed(VirtAddr at) const {
    // A branch that is not among the function's code is compared nowhere.
    const auto branches = branches_.equal_range(at);
    return (flow_.target(at) & ~kTargetSite) == kTargetBranch &&
           branches.first != branches.second &&
           std::all_of(branches.first, branches.second,
                       [&](const auto& branch) { return !same_bytes(*branch.second); });
  }

  // Both ways from the address do the same, and so do the branches that part on the way.
  bool walks(VirtAddr start) {
    std::vector<std::pair<VirtAddr, VirtAddr>> ways{{start, start}};
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (i == kMostSteps) return no("too many ways");
      if (!walk(ways[i].first, ways[i].second, ways)) return false;
    }
    return true;
  }

  bool walk(VirtAddr from, VirtAddr from_now, std::vector<std::pair<VirtAddr, VirtAddr>>& ways) {
    Walker old(before_, decoder_, from, site_of_, nops_);
    Walker now(after_, decoder_, from_now, sled_of_, nops_);
    using Passed = std::pair<std::size_t, std::size_t>;
    std::map<std::pair<VirtAddr, VirtAddr>, Passed> done;  // where both have been, sites before it
    for (;;) {
      if (!old.settle(false)) {
        if (old.spins() && !now.settle(true) && now.spins()) return spin_alike(old, now);
        if (old.lost() && !now.settle(true) && now.lost() && same_end(old, now)) break;
        return no("the original's way does not come back");
      }
      // A guard that the original has itself is an instruction as any other.
      if (!now.settle(!is_guard_like(old))) return no("the result's way does not come back");
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
  bool spin_alike(Walker& old, Walker& now) {
    const std::size_t both = (old.sites().size() + 1) * (now.sites().size() + 1);
    const std::size_t count = std::min<std::size_t>(both, std::size_t{kMostSteps} * kMostSteps);
    if (old.passed_for_ever(count) != now.passed_for_ever(count))
      return no("the sleds passed are not those of the sites");
    now.sites() = old.sites();
    return keep(old, now);
  }

  bool keep(Walker& old, Walker& now) {
    if (old.sites() != now.sites()) return no("the sleds passed are not those of the sites");
    for (const VirtAddr at : old.visited()) visited_.insert(at.value);
    for (const VirtAddr at : now.visited()) entered_.insert(at.value);
    keep_passed(now);
    keep_lowers(now);
    return true;
  }

  // Both are before the same bytes at the same place, whatever these mean.
  [[nodiscard]] bool same_end(const Walker& old, const Walker& now) const {
    return old.at() == now.at() && std::ranges::equal(before_.bytes_at(old.at(), kLongest),
                                                      after_.bytes_at(now.at(), kLongest));
  }

  void keep_lowers(const Walker& walker) {
    for (const auto& [site, lower] : walker.lowers()) result_.lower[site.value] = lower;
  }

  void keep_passed(const Walker& walker) {
    passed_.insert(walker.visited().begin(), walker.visited().end());
  }

  static bool is_guard_like(const Walker& walker) {
    return equals(walker.bytes(), kLower) || equals(walker.bytes(), kRaise);
  }

  // The same operation on the same operands. A call may go through a stub of sleds.
  bool same(const CodeInstruction& old, ByteView old_bytes, Walker& now,
            std::vector<std::pair<VirtAddr, VirtAddr>>& ways) {
    const CodeInstruction& code = now.code();
    if (old.kind != code.kind || old.rip_target != code.rip_target) return false;
    if (old.kind == InstructionKind::call && old.target != code.target) {
      Walker stub(after_, decoder_, *code.target, sled_of_, nops_, kReturnAddress);
      const bool arrives = stub.settle(true, old.target) && stub.at() == *old.target;
      std::ranges::copy(stub.sites(), std::back_inserter(now.sites()));
      keep_lowers(stub);
      keep_passed(stub);
      return arrives;
    }
    if (old.kind == InstructionKind::conditional && old.target && code.target) {
      const std::pair way{*old.target, *code.target};
      entered_.insert(way.second.value);
      if (way.first != way.second && std::ranges::find(ways, way) == ways.end()) {
        ways.push_back(way);
      }
      return condition(old, old_bytes) == condition(code, now.bytes());
    }
    if (old.target != code.target) return false;
    return masked(old, old_bytes) == masked(code, now.bytes());
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
  const Decoder& decoder_;
  const SledOf& site_of_;
  const SledOf& sled_of_;
  const Substitutions& substitutions_;
  std::vector<bool> dead_;                                    // FunctionFlow::dead_filler()
  std::multimap<VirtAddr, const CodeInstruction*> branches_;  // of the original, by target
  std::set<std::uint64_t> visited_;                           // in the original, on the proven ways
  std::set<std::uint64_t> entered_;  // in the result, on these and where they part
  std::set<VirtAddr> passed_;        // in the result, on these
  std::vector<VirtAddr> reaimed_;    // targets of the original whose branches changed
  std::size_t nops_;                 // that may still be passed
  std::string why_;
  ComparedCode result_;
};

}  // namespace

ComparedCode compare_code(const FunctionFlow& flow, const ElfFile& before, const ElfFile& after,
                          const SledOf& site_of, const SledOf& sled_of,
                          const Substitutions& substitutions) {
  const auto decoder = Decoder::open(before.header(), false);
  if (!decoder) return {};  // no flow can have been read without one
  return FunctionComparer(flow, before, after, *decoder, site_of, sled_of, substitutions).run();
}

}  // namespace reprobe
