#include "libprobe/code/part_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "libprobe/code/stack_returns.hpp"

namespace reprobe {
namespace {

// Compilers make a handful; tail calls in a file without symbols lead to more.
constexpr std::size_t kMostParts = 256;

}  // namespace

void PartSet::missing(std::string why) {
  if (why_incomplete_.empty()) why_incomplete_ = std::move(why);
}

Part* PartSet::part_of(VirtAddr address) {
  const auto part =
      std::ranges::find_if(parts, [&](const Part& p) { return p.range.contains(address); });
  return part == parts.end() ? nullptr : &*part;
}

bool PartSet::spend(std::uint64_t bytes) {
  if (bytes > budget_) {
    budget_ = 0;
    missing("too much other code belongs to it or refers to it");
    return false;
  }
  budget_ -= bytes;
  return true;
}

Part* PartSet::reach(VirtAddr address) {
  if (Part* known = part_of(address)) return known;
  const auto range = ranges_.find(address);
  if (!range) {
    missing(fmt::format("jump to {:#x}, which lies in no known function", address.value));
    return nullptr;
  }
  if (parts.size() == kMostParts) {
    missing("it jumps to too many other functions");
    return nullptr;
  }
  if (!spend(range->end.value - range->start.value)) return nullptr;
  auto code = ranges_.decode(*range);
  if (!code) {
    missing(
        fmt::format("the code at {:#x} that belongs to it does not decode", range->start.value));
    return nullptr;
  }
  Part part{*range, std::move(*code), {}, {}, ranges_.is_function(range->start), {}};
  part.code = part.own;
  parts.push_back(std::move(part));
  return &parts.back();
}

std::span<const CodeInstruction> PartSet::look_at(const CodeRange& range) {
  if (looked_at_.start == range.start && looked_at_.end == range.end) return looked_at_code_;
  looked_at_ = range;
  looked_at_code_.clear();
  if (spend(range.end.value - range.start.value))
    if (auto code = ranges_.decode(range)) looked_at_code_ = std::move(*code);
  return looked_at_code_;
}

std::span<const CodeInstruction> PartSet::function_at(VirtAddr address) {
  if (const Part* part = part_of(address)) return part->code;
  const auto range = ranges_.find(address);
  return range ? look_at(*range) : std::span<const CodeInstruction>{};
}

const CodeInstruction* PartSet::holder_of(VirtAddr address) {
  const auto code = function_at(address);
  const auto after = std::ranges::upper_bound(code, address, {}, &CodeInstruction::address);
  return after == code.begin() || std::prev(after)->end() <= address ? nullptr : &*std::prev(after);
}

void PartSet::arrive(VirtAddr address, Arrival how) {
  Part* part = part_of(address);
  if (part == nullptr) return;
  const auto at = std::ranges::lower_bound(part->arrivals, address, {}, &ArrivalPoint::address);
  if (at != part->arrivals.end() && at->address == address) {
    if (how == Arrival::unknown) at->how = how;
    return;
  }
  part->arrivals.insert(at, {address, how});
}

bool PartSet::returns_elsewhere(const CodeInstruction& call) {
  if (call.kind != InstructionKind::call || !call.target) return false;
  const VirtAddr callee = *call.target;
  if (const auto known = callees_.find(callee); known != callees_.end()) return known->second;
  bool& elsewhere = callees_[callee];
  const auto range = ranges_.find(callee);
  const bool whole = range && range->start == callee && !ranges_.is_linkage(callee);
  if (!whole || !spend(range->end.value - range->start.value)) return false;
  const auto code = ranges_.decode(*range);
  elsewhere = code && changes_return_address(*code);
  return elsewhere;
}

bool PartSet::is_surely_read(std::span<const CodeInstruction> code,
                             const CodeInstruction& instruction) {
  // Back to what ends a block.
  const auto ends = [&](const CodeInstruction& before) {
    return before.ends_block() || returns_elsewhere(before);
  };
  auto first = static_cast<std::size_t>(&instruction - code.data());
  while (first != 0 && !ends(code[first - 1])) --first;
  if (first == 0) return true;
  const VirtAddr low = code[first].address;
  return std::ranges::any_of(code, [&](const CodeInstruction& from) {
    if (!from.target || *from.target < low || *from.target > instruction.address) return false;
    const auto to = std::ranges::lower_bound(code, *from.target, {}, &CodeInstruction::address);
    return to != code.end() && to->address == *from.target;
  });
}

void sort_arrivals(std::vector<ArrivalPoint>& arrivals) {
  std::ranges::sort(arrivals, [](const ArrivalPoint& a, const ArrivalPoint& b) {
    return a.address != b.address ? a.address < b.address : a.how > b.how;
  });
  const auto same = [](const ArrivalPoint& a, const ArrivalPoint& b) {
    return a.address == b.address;
  };
  arrivals.erase(std::unique(arrivals.begin(), arrivals.end(), same), arrivals.end());
}

}  // namespace reprobe
