#include "libprobe/verify/compare_guards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/verify/check_index.hpp"
#include "libprobe/verify/compare_code.hpp"
#include "libprobe/verify/compare_image.hpp"
#include "libprobe/verify/compare_stub_code.hpp"
#include "libprobe/verify/compare_stub_rows.hpp"
#include "libprobe/verify/compare_stub_symbols.hpp"
#include "libprobe/verify/counter_uses.hpp"
#include "libprobe/verify/passed_nops.hpp"
#include "libprobe/verify/site_checks.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kWord = 8;

// The record of what `reprobe guards` replaced; nullptr where there is none.
const Section* guards_record(const ElfFile& file) {
  const Section* site = file.section(kGuardsAtSite);
  return site != nullptr ? site : file.section(kGuardsOn);
}

class GuardComparer {
 public:
  GuardComparer(const ElfFile& before, const ElfFile& after)
      : before_(before),
        after_(after),
        old_probes_(read_probes(before)),
        new_probes_(read_probes(after)) {}

  std::vector<Finding> run() {
    const Section* record = guards_record(after_);
    const bool to_sites = record->name == kGuardsAtSite;
    image_.compare_undo(record->name);
    if (pair_probes(to_sites)) {
      if (to_sites) {
        compare_checks();
        compare_unexecuted(before_, after_, proven_, stands_, out_);
        compare_passed_nops(before_, after_, {}, stands_, out_);
        compare_stub_rows(before_, after_, stands_, out_);
      } else {
        compare_presets();
      }
    }
    check_index(before_, after_, new_probes_, out_);
    image_.compare_segments();
    image_.compare_unwind();
    compare_stub_symbols(before_, after_, {}, out_);  // none is new
    image_.compare_bytes();
    return std::move(out_);
  }

 private:
  void differs(std::string rule, std::string message) {
    out_.push_back(verify_finding(std::move(rule), std::move(message)));
  }

  // Notes keep their order and say what they said, but for the counter.
  bool pair_probes(bool may_clear) {
    const auto& old = old_probes_.probes;
    const auto& now = new_probes_.probes;
    if (old.size() != now.size()) {
      differs(old.size() > now.size() ? "verify-probe-lost" : "verify-probe-added",
              fmt::format("{} probes; expected {}", now.size(), old.size()));
      return false;
    }
    for (std::size_t i = 0; i < old.size(); ++i) {
      const bool cleared = may_clear && old[i].semaphore.value != 0 && now[i].semaphore.value == 0;
      if (old[i].note.provider != now[i].note.provider || old[i].note.name != now[i].note.name ||
          old[i].note.arguments != now[i].note.arguments || old[i].site != now[i].site ||
          old[i].verdict != now[i].verdict || (!cleared && old[i].semaphore != now[i].semaphore)) {
        differs("verify-probe-lost",
                fmt::format("{}:{} is not what it was", old[i].note.provider, old[i].note.name));
        return false;
      }
      if (!cleared) continue;
      cleared_.insert(old[i].semaphore.value);
      const Note& note = old[i].note;
      image_.allow(FileOffset{note.file_offset.value + note.desc + 2 * kWord}, Size{kWord});
    }
    return true;
  }

  [[nodiscard]] bool is_cleared(const CheckedCounter& counter) const {
    return cleared_.contains(counter.address.value);
  }

  void compare_checks() {
    counters_ = checked_counters(before_, old_probes_);
    for (const CheckedCounter& counter : counters_) {
      if (!is_cleared(counter)) continue;
      if (!counter.why_not.empty()) differs("verify-code", counter.why_not);
      for (const std::size_t i : counter.probes) {
        if (new_probes_.probes[i].semaphore.value != 0)
          differs("verify-probe-lost", "notes of one probe name different counters");
      }
    }
    const auto read = read_counter_uses(before_, old_probes_, counters_);
    if (!read || !out_.empty()) {
      if (out_.empty()) differs("verify-code", "the original's code is not understood");
      return;
    }
    for (const UnknownUse& unknown : read->uses.unknown) {
      if (is_cleared(counters_[unknown.counter]))
        differs("verify-code", fmt::format("{:#x}: {}", unknown.at.value, unknown.what));
    }
    for (const CounterUse& use : read->uses.uses) take(use);
    compare_functions(read->flows);
    for (const auto& [at, use] : uses_) {
      if (!substituted_.contains(at))
        differs("verify-code",
                fmt::format("the check at {:#x} is not proven to look at the site", at));
    }
    compare_leftovers();
  }

  // A use whose counters are cleared, all or none.
  void take(const CounterUse& use) {
    const auto cleared = [&](std::size_t i) { return is_cleared(counters_[i]); };
    if (std::ranges::none_of(use.counters, cleared)) return;
    const auto same = [&](std::size_t i) {
      return counters_[i].unarmed == counters_[use.counters.front()].unarmed;
    };
    if (!use.why_not.empty() || !std::ranges::all_of(use.counters, cleared) ||
        !std::ranges::all_of(use.counters, same)) {
      differs("verify-code",
              fmt::format("the check at {:#x} cannot look at a site{}{}", use.code.address.value,
                          use.why_not.empty() ? "" : ": ", use.why_not));
      return;
    }
    uses_.emplace(use.code.address.value, &use);
  }

  void compare_functions(const FlowReader& flows) {
    const SiteChecks checks(after_);
    const std::vector<ArrivingBranch> arrivals = find_arrivals(before_, after_);
    Substitutions substitutions;
    substitutions.expected = [this](VirtAddr at) { return uses_.contains(at.value); };
    substitutions.size = [&](const X86Reading& original, VirtAddr now) {
      const CounterUse& use = *uses_.at(original.address.value);
      const auto size = checks.size(use, counters_[use.counters.front()], now);
      if (size) substituted_.insert(original.address.value);
      return size;
    };
    std::set<std::uint64_t> sites;
    for (const Probe& probe : old_probes_.probes) sites.insert(probe.site.value);
    const SledOf site_at = [&](VirtAddr at) {
      return sites.contains(at.value) ? std::optional(at) : std::nullopt;
    };
    VirtAddr compared_to{};
    for (const auto& [at, use] : uses_) {
      if (VirtAddr{at} < compared_to) continue;
      const auto flow = flows.function_of(VirtAddr{at});
      if (!flow) continue;
      compared_to = flow->end();
      ComparedCode compared =
          compare_code(*flow, before_, after_, site_at, site_at, substitutions, arrivals);
      std::ranges::move(compared.findings, std::back_inserter(out_));
      std::ranges::move(compared.stands, std::back_inserter(stands_));
      for (const auto& [begin, end] : compared.proven) {
        image_.allow(begin, Size{end.value - begin.value});
        proven_.emplace_back(begin, end);
      }
      compare_fillers(checks, compared.proven);
    }
  }

  // In place of what changed stand checks and jumps, with int3 behind those and nothing else.
  void compare_fillers(const SiteChecks& checks,
                       std::span<const std::pair<VirtAddr, VirtAddr>> changed) {
    constexpr std::uint8_t kJump = 0xe9, kTrap = 0xcc;
    constexpr std::uint64_t kJumpSize = 5;
    const auto byte_at = [&](VirtAddr at) -> std::optional<std::uint8_t> {
      const ByteView bytes = after_.bytes_at(at, Size{1});
      if (bytes.empty()) return std::nullopt;
      return std::to_integer<std::uint8_t>(bytes[0]);
    };
    VirtAddr at{};
    bool behind_jump = false;
    for (const auto& [begin, end] : changed) {
      behind_jump = behind_jump && begin <= at;  // one jump may stand for several instructions
      at = std::max(at, begin);
      while (at < end) {
        if (behind_jump && byte_at(at) == kTrap) {
          ++at.value;
          continue;
        }
        const auto use = uses_.find(at.value);
        const auto size =
            use == uses_.end()
                ? std::nullopt
                : checks.size(*use->second, counters_[use->second->counters.front()], at);
        if (size && *size == use->second->code.size) {
          at.value += size->value;
          behind_jump = false;
          continue;
        }
        if (byte_at(at) != kJump) {
          differs("verify-code", fmt::format("{:#x} is neither a check nor a jump", at.value));
          return;
        }
        at.value += kJumpSize;
        behind_jump = true;
      }
    }
  }

  // Nothing in the result leads to a cleared counter. Its address may still be taken where nothing
  // looks there: for a probe's operand.
  void compare_leftovers() {
    std::vector<CheckedCounter> cleared;
    for (const CheckedCounter& counter : counters_)
      if (is_cleared(counter)) cleared.push_back(counter);
    const auto read = read_counter_uses(after_, new_probes_, cleared);
    if (!read) return differs("verify-code", "the result's code is not understood");
    for (const CounterUse& use : read->uses.uses) may_check(use.code.address, "a check");
    for (const UnknownUse& use : read->uses.unknown) may_check(use.at, use.what);
  }
  void may_check(VirtAddr at, const std::string& what) {
    differs("verify-code",
            fmt::format("the result may still check a counter at {:#x}: {}", at.value, what));
  }

  // Counters that were 0 and are 1.
  void compare_presets() {
    for (const CheckedCounter& counter : checked_counters(before_, old_probes_)) {
      const auto value = [&](const ElfFile& file) -> std::optional<std::uint64_t> {
        const ByteView bytes = file.bytes_at(counter.address, Size{kCounterBytes});
        if (bytes.size() < kCounterBytes) return std::nullopt;
        return load_uint(bytes, 0, kCounterBytes, file.header().order);
      };
      if (value(before_) == 0 && value(after_) == 1)
        image_.allow(counter.address, Size{kCounterBytes});
    }
  }

  const ElfFile& before_;
  const ElfFile& after_;
  ProbeFile old_probes_;
  ProbeFile new_probes_;
  std::set<std::uint64_t> cleared_;  // counters that no note of the result names
  std::vector<CheckedCounter> counters_;
  std::map<std::uint64_t, const CounterUse*> uses_;  // of cleared counters
  std::set<std::uint64_t> substituted_;              // those that are proven
  ProvenCode proven_;
  std::vector<StandsFor> stands_;
  std::vector<Finding> out_;
  ImageComparer image_{before_, after_, out_};
};

}  // namespace

bool has_guards(const ElfFile& file) { return guards_record(file) != nullptr; }

std::vector<Finding> compare_guards(const ElfFile& before, const ElfFile& after) {
  return GuardComparer(before, after).run();
}

}  // namespace reprobe
