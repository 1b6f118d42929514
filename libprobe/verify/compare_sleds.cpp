#include "libprobe/verify/compare_sleds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/code/flow.hpp"
#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/verify/changed_returns.hpp"
#include "libprobe/verify/check_index.hpp"
#include "libprobe/verify/compare_code.hpp"
#include "libprobe/verify/compare_image.hpp"
#include "libprobe/verify/compare_index.hpp"
#include "libprobe/verify/compare_slots.hpp"
#include "libprobe/verify/compare_stub_code.hpp"
#include "libprobe/verify/compare_stub_rows.hpp"
#include "libprobe/verify/compare_stub_symbols.hpp"
#include "libprobe/verify/moved_arguments.hpp"
#include "libprobe/verify/passed_nops.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

class SledComparer {
 public:
  SledComparer(const ElfFile& before, const ElfFile& after)
      : before_(before),
        after_(after),
        old_probes_(read_probes(before)),
        new_probes_(read_probes(after)) {}

  std::vector<Finding> run() {
    image_.compare_undo(kUndoSection);
    check_index(before_, after_, new_probes_, out_);
    if (pair_probes()) {
      compare_functions();
      compare_arguments();
      compare_stub_symbols(before_, after_, passed_, out_);
      compare_unexecuted(before_, after_, proven_, stands_, out_);
      compare_passed_nops(before_, after_, sleds_, stands_, out_);
      compare_stub_rows(before_, after_, stands_, out_);
      compare_slots(after_, slots_, site_of_sled_, out_);
    }
    image_.compare_segments();
    image_.compare_unwind();
    image_.allow_notes();
    image_.compare_bytes();
    return std::move(out_);
  }

 private:
  // Notes keep their order: the n-th of the result is the n-th of the original.
  bool pair_probes() {
    const auto& old = old_probes_.probes;
    const auto& now = new_probes_.probes;
    if (old.size() != now.size()) {
      out_.push_back(
          verify_finding(old.size() > now.size() ? "verify-probe-lost" : "verify-probe-added",
                         fmt::format("{} probes; expected {}", now.size(), old.size())));
      return false;
    }
    for (std::size_t i = 0; i < old.size(); ++i) {
      if (old[i].note.provider != now[i].note.provider || old[i].note.name != now[i].note.name ||
          old[i].semaphore != now[i].semaphore || !may_stand(old[i], now[i].site)) {
        out_.push_back(verify_finding(
            "verify-probe-lost",
            fmt::format("{}:{} is not what it was", old[i].note.provider, old[i].note.name)));
        return false;
      }
      const auto [it, added] = sled_of_site_.emplace(old[i].site, now[i].site);
      if (!added && it->second != now[i].site) {
        out_.push_back(verify_finding("verify-probe-lost", "one site has two sleds"));
        return false;
      }
      site_of_sled_.emplace(now[i].site, old[i].site);
      if (is_new_sled(old[i].site, now[i].site)) sleds_.insert(now[i].site);
    }
    return true;
  }

  // It has moved, or its bytes have changed.
  [[nodiscard]] bool is_new_sled(VirtAddr site, VirtAddr now) const {
    const Size size = sled_at(after_, now);
    return site != now || (size.value != 0 && !std::ranges::equal(before_.bytes_at(now, size),
                                                                  after_.bytes_at(now, size)));
  }

  // Only live probes move, and to a sled. (What is said of the result's probes comes from its own
  // record of the original, and proves nothing.)
  [[nodiscard]] bool may_stand(const Probe& old, VirtAddr now) const {
    return old.site == now || (old.verdict == Verdict::live && sled_at(after_, now).value != 0);
  }

  void compare_functions() {
    std::vector<VirtAddr> sites;
    for (const auto& [site, sled] : sled_of_site_) sites.push_back(site);
    const auto flows = FlowReader::open(before_, sites);
    if (!flows) {
      out_.push_back(verify_finding("verify-code", flows.error().message));
      return;
    }
    const auto lookup = [](const std::map<VirtAddr, VirtAddr>& map, VirtAddr at) {
      const auto it = map.find(at);
      return it == map.end() ? std::nullopt : std::optional(it->second);
    };
    const SledOf site_of = [&](VirtAddr at) {
      return lookup(sled_of_site_, at) ? std::optional(at) : std::nullopt;
    };
    const SledOf sled_of = [&](VirtAddr at) { return lookup(site_of_sled_, at); };
    // Only live sites get sleds. Another one may stand in what two functions claim.
    std::set<VirtAddr> left_alone;
    for (const Probe& probe : old_probes_.probes) {
      if (probe.verdict != Verdict::live) left_alone.insert(probe.site);
    }
    const std::vector<ArrivingBranch> arrivals = find_arrivals(before_, after_);
    // A function is decoded once, however many sites it has.
    VirtAddr compared_to{};
    for (const VirtAddr site : sites) {
      if (site < compared_to || left_alone.contains(site)) continue;
      const auto flow = flows->function_of(site);
      if (!flow) continue;
      compared_to = flow->end();
      ComparedCode compared = compare_code(*flow, before_, after_, site_of, sled_of, {}, arrivals);
      std::ranges::move(compared.findings, std::back_inserter(out_));
      lower_.merge(compared.lower);
      std::ranges::move(compared.stands, std::back_inserter(stands_));
      for (const auto& [begin, end] : compared.proven) {
        image_.allow(begin, Size{end.value - begin.value});
        proven_.emplace_back(begin, end);
      }
      compare_callees(*flow);
      keep_passed(compared.passed, flow->function.name);
      keep_slots(compared.slots, *flow);
    }
  }

  [[nodiscard]] bool open_ranges() {
    if (!ranges_) ranges_ = CodeRanges::open(before_);
    if (!ranges_)
      out_.push_back(verify_finding("verify-code", "the code around the sleds cannot be read"));
    return ranges_.has_value();
  }

  // What is known of a function's code takes for granted that what it calls comes back behind the
  // call.
  void compare_callees(const FunctionFlow& flow) {
    if (!open_ranges()) return;
    for (const CodeInstruction& code : flow.code) {
      const auto reading = read_x86(before_, code.address);
      if (!reading || reading->flow != ReadFlow::call || !reading->target) continue;
      const VirtAddr callee = *reading->target;
      if (callee >= flow.function.start && callee < flow.end()) continue;
      const auto [known, fresh] = returns_elsewhere_.emplace(callee, false);
      if (fresh) known->second = changes_its_return(before_, *ranges_, callee);
      if (known->second) {
        out_.push_back(verify_finding("verify-code",
                                      fmt::format("what is called at {:#x} in {} returns elsewhere",
                                                  code.address.value, flow.function.name)));
      }
    }
  }

  void keep_slots(const std::vector<PassedSlot>& slots, const FunctionFlow& flow) {
    if (slots.empty() || !open_ranges()) return;
    compare_slot_flags(before_, *ranges_, flow, slots, out_);
    slots_.insert(slots_.end(), slots.begin(), slots.end());
  }

  void keep_passed(const std::vector<VirtAddr>& passed, const std::string& function) {
    const Section* stubs = after_.section(kSledSection);
    for (const VirtAddr at : passed) {
      const bool inside =
          stubs != nullptr && in_range(at.value, stubs->addr.value, stubs->size.value);
      if (inside) passed_[at].insert(function);
    }
  }

  // What the notes say of the stack follows the stack pointer.
  void compare_arguments() {
    for (std::size_t i = 0; i < old_probes_.probes.size(); ++i) {
      const Probe& old = old_probes_.probes[i];
      const auto lower = lower_.find(old.site.value);
      const std::int64_t by = lower == lower_.end() ? 0 : lower->second;
      const bool moved = old.site != new_probes_.probes[i].site;
      if ((moved && lower == lower_.end()) ||
          !same_arguments(old.note.arguments, new_probes_.probes[i].note.arguments, by)) {
        out_.push_back(verify_finding("verify-probe-lost",
                                      fmt::format("{}:{} has other arguments than at its site",
                                                  old.note.provider, old.note.name)));
      }
    }
  }

  const ElfFile& before_;
  const ElfFile& after_;
  ProbeFile old_probes_;
  ProbeFile new_probes_;
  std::map<VirtAddr, VirtAddr> sled_of_site_;
  std::map<VirtAddr, VirtAddr> site_of_sled_;
  std::set<VirtAddr> sleds_;  // that the original has not
  std::map<std::uint64_t, std::int64_t> lower_;
  PassedInStubs passed_;
  ProvenCode proven_;
  std::vector<StandsFor> stands_;
  std::vector<PassedSlot> slots_;
  std::optional<CodeRanges> ranges_;
  std::map<VirtAddr, bool> returns_elsewhere_;  // of functions that are called
  std::vector<Finding> out_;
  ImageComparer image_{before_, after_, out_};
};

}  // namespace

bool has_sleds(const ElfFile& file) { return file.section(kUndoSection) != nullptr; }

namespace {

// The file had no index, and the sleds need one. In between it was a file with an index and no
// sleds, which the result's record gives: what makes that of the original is an index, and what
// makes the result of that is sleds. What the record says proves itself: both steps are compared.
std::vector<Finding> compare_with_index(const ElfFile& before, const ElfFile& after) {
  const auto refuse = [](std::string why) {
    return std::vector{verify_finding("verify-undo", std::move(why))};
  };
  const auto plan = plan_undo(after);
  auto bytes = plan ? apply(*plan, after.source()) : tl::unexpected(plan.error());
  if (!bytes) return refuse("the record does not give the file with its index back");
  const auto indexed = ElfFile::open(memory_source(std::move(*bytes)));
  const auto original = undo_all(after);
  const auto old =
      before.source().slice(FileOffset{0}, Size{before.source().size()}, "the original");
  if (!indexed || !original || !old || !std::ranges::equal(*original, *old)) {
    return refuse("the record of the index does not give the original back");
  }
  std::vector<Finding> out = compare_index(before, *indexed);
  std::ranges::move(SledComparer(*indexed, after).run(), std::back_inserter(out));
  return out;
}

}  // namespace

std::vector<Finding> compare_sleds(const ElfFile& before, const ElfFile& after) {
  if (after.section(kUndoIndexSection) != nullptr && before.section(kUndoIndexSection) == nullptr &&
      !find_index(before))
    return compare_with_index(before, after);
  return SledComparer(before, after).run();
}

}  // namespace reprobe
