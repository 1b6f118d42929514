#include "libprobe/rewrite/sled/runs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/rewrite/sled/displace.hpp"

namespace reprobe {
namespace {

std::string at_text(VirtAddr address) { return fmt::format("at {:#x}", address.value); }

tl::unexpected<Reason> no(std::string words, std::string detail = {}) {
  return tl::unexpected<Reason>(Reason{std::move(words), std::move(detail)});
}

}  // namespace

bool TakenCode::is_free(VirtAddr begin, VirtAddr end) const {
  const auto next = used.lower_bound(end.value);
  return next == used.begin() || std::prev(next)->second <= begin.value;
}

bool RunFinder::is_wanted_site(VirtAddr address) const {
  return std::ranges::binary_search(sites_, address);
}

bool RunFinder::is_target(VirtAddr address) const {
  const TargetKinds kinds = flow_.target(address);
  if (kinds == kTargetSite) return is_target_site(address);
  return kinds != 0;
}

bool RunFinder::is_target_site(VirtAddr address) const {
  return !is_wanted_site(address) || is_planned(address);
}

std::optional<CodeTarget> RunFinder::target_inside(VirtAddr begin, VirtAddr end) const {
  for (auto it = std::ranges::upper_bound(flow_.targets, begin, {}, &CodeTarget::address);
       it != flow_.targets.end() && it->address < end; ++it) {
    // A site is one where an instruction starts: its sled replaces that.
    if (is_target(it->address) || flow_.at(it->address) == nullptr) return *it;
  }
  return std::nullopt;
}

bool RunFinder::is_padding(std::size_t i) const { return dead_[i]; }

const std::vector<std::size_t>& RunFinder::branches_to(VirtAddr target) {
  if (branches_.empty()) {
    for (std::size_t i = 0; i < flow_.code.size(); ++i) {
      if (flow_.code[i].target) branches_[flow_.code[i].target->value].push_back(i);
    }
  }
  return branches_[target.value];
}

std::uint8_t RunFinder::boundaries(VirtAddr at, std::uint64_t size) const {
  unsigned found = 0;
  auto code = std::ranges::upper_bound(flow_.code, at, {}, &CodeInstruction::address);
  for (; code != flow_.code.end() && code->address.value < at.value + size; ++code) {
    const auto index = static_cast<std::size_t>(code - flow_.code.begin());
    if (!dead_[index]) found |= 1U << (code->address.value - at.value);
  }
  return static_cast<std::uint8_t>(found);
}

Operand RunFinder::operand(VirtAddr at, std::uint64_t size) const {
  const unsigned found = boundaries(at, size);
  if (found == 0) return Operand::whole;
  if (size != kJumpSize) return Operand::broken;
  if (found == 1U << 1) return Operand::low_byte;
  return found == 1U << 2 ? Operand::second : Operand::broken;
}

tl::expected<Run, Reason> RunFinder::from(std::size_t first, std::size_t through,
                                          std::uint64_t size, Targets targets) {
  // Another sled may have the filler, or it is data; what it alone leads to is as dead.
  if (unreached_[first]) return no("too few bytes");
  Run run{first, first, start(first), true, {}};
  for (std::size_t i = first; i <= through || run.end.value - start(first).value < size; ++i) {
    if (i == flow_.code.size() || start(i) >= flow_.end()) return no("too few bytes");
    if (i != first && is_target(start(i))) {
      if (targets == Targets::none || !can_reaim(i)) return tl::unexpected(target_reason(start(i)));
      run.reaimed.push_back(i);
    }
    if (const auto target = target_inside(start(i), end(i))) {
      return tl::unexpected(target_reason(target->address));
    }
    if (const auto why = why_not_displaced(flow_.code[i])) {
      return no(*why + " in the window", at_text(start(i)));
    }
    if (const auto why = flow_.kept.why_stays(flow_.code[i])) {
      return no(std::string(*why), at_text(start(i)));
    }
    if ((flow_.target(start(i)) & kTargetSite) != 0 && is_target_site(start(i))) {
      return no("another probe in the window", at_text(start(i)));
    }
    if (flow_.code[i].target && taken_.reaimed.contains(flow_.code[i].target->value)) {
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
  if (!taken_.is_free(start(first), run.end)) return no("another sled in the window");
  if (std::size_t target = 0; holds_branch_to_own_target(run, target)) {
    return tl::unexpected(target_reason(start(target)));
  }
  return run;
}

// Such a branch would move with its target, and could not be aimed where it stands.
bool RunFinder::holds_branch_to_own_target(const Run& run, std::size_t& target) {
  for (const std::size_t reaimed : run.reaimed) {
    for (const std::size_t source : branches_to(start(reaimed))) {
      target = reaimed;
      if (start(source) < run.end && end(source) > start(run)) return true;
    }
  }
  return false;
}

// Nothing but branches of the function leads there.
bool RunFinder::can_reaim(std::size_t i) {
  TargetKinds kinds = flow_.target(start(i));
  if (is_wanted_site(start(i)) && !is_planned(start(i))) kinds &= ~kTargetSite;
  if (kinds != kTargetBranch) return false;
  const std::vector<std::size_t>& sources = branches_to(start(i));
  return !sources.empty() && std::ranges::all_of(sources, [&](std::size_t source) {
    const CodeInstruction& code = flow_.code[source];
    const bool branch =
        code.kind == InstructionKind::jump || code.kind == InstructionKind::conditional;
    // What arrives inside the branch would find other bytes.
    return branch && code.branch_field && taken_.is_free(code.address, code.end()) &&
           !target_inside(code.address, code.end());
  });
}

void RunFinder::extend_into_padding(Run& run, std::uint64_t wanted_end) const {
  for (std::size_t i = run.last + 1; i < flow_.code.size() && run.end.value < wanted_end; ++i) {
    if (!is_padding(i)) return;
    run.end = end(i);
  }
}

Reason RunFinder::not_written(std::size_t at) const {
  return {"the stub cannot be written", at_text(start(at))};
}

Reason RunFinder::target_reason(VirtAddr address) const {
  const TargetKinds kinds = flow_.target(address);
  if (kinds == kTargetSite) return {"another probe in the window", at_text(address)};
  return {fmt::format("a target in the window: {}", target_names(kinds & ~kTargetSite)),
          at_text(address)};
}

}  // namespace reprobe
