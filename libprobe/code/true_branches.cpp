#include "libprobe/code/true_branches.hpp"

#include <algorithm>

namespace reprobe {
namespace {

constexpr std::uint64_t kShortReach = 2 + 128;

bool is_branch(const Reference& reference) {
  return reference.kind == ReferenceKind::branch || reference.kind == ReferenceKind::call;
}

}  // namespace

TrueBranches::TrueBranches(const ElfFile& file, std::span<const Function> functions)
    : file_(file), ranges_(CodeRanges::open(file)) {
  std::vector<AddressRanges::Range> wanted;
  for (const Function& function : functions) {
    wanted.push_back({function.start, VirtAddr{function.start.value + function.size.value}});
  }
  references_ = find_references(file, AddressRanges(std::move(wanted)));
  if (!ranges_) return;
  std::uint64_t budget = file.source().size();  // sections may overlap in a hostile file
  for (const Section& section : file.sections()) {
    if (!section.executable() || section.nobits() || section.size.value > budget) continue;
    budget -= section.size.value;
    read_gaps(section);
  }
  std::ranges::sort(gaps_, {}, &Gap::start);
}

// Steps over described code; what lies between is decoded.
void TrueBranches::read_gaps(const Section& section) {
  const auto size = checked_add(section.addr.value, section.size.value);
  if (!size) return;
  const VirtAddr end{*size};
  Gap gap{section.addr, section.addr, {}};
  bool decodes = true;
  const auto close = [&](VirtAddr at) {
    gap.end = at;
    if (decodes && !gap.starts.empty()) gaps_.push_back(std::move(gap));
    decodes = true;
  };
  for (VirtAddr at = section.addr; at < end;) {
    const auto range = ranges_->find(at);
    if (range && range->end > at) {
      // Passed from inside of an instruction: the walk was not in step.
      decodes = decodes && (range->start == at || gap.starts.empty());
      close(at);
      at = range->end;
      gap = Gap{at, at, {}};
      continue;
    }
    const auto code = ranges_->decode_at(at);
    if (!code || code->end() > end) {
      decodes = false;
      at = VirtAddr{at.value + 1};
      continue;
    }
    gap.starts.push_back(at);
    at = code->end();
  }
  close(end);
}

// Where instructions would begin that branch there, as FunctionFlow looks for them.
std::vector<VirtAddr> TrueBranches::sources(const FunctionFlow& flow, VirtAddr target) const {
  std::vector<VirtAddr> found;
  for (const Reference& reference : references_.into(target, VirtAddr{target.value + 1})) {
    if (is_branch(reference)) found.push_back(reference.source);
  }
  const std::uint64_t begin = target.value - std::min(target.value, kShortReach);
  const ByteView bytes = file_.bytes_at(VirtAddr{begin}, Size{2 * kShortReach});
  for (std::size_t i = 0; i + 2 <= bytes.size(); ++i) {
    const unsigned opcode = std::to_integer<unsigned>(bytes[i]);
    const bool jump = (opcode & 0xf0) == 0x70 || (opcode & 0xfc) == 0xe0 || opcode == 0xeb;
    const std::uint64_t byte = std::to_integer<std::uint64_t>(bytes[i + 1]);
    if (jump && begin + i + 2 + ((byte ^ 0x80) - 0x80) == target.value) {
      found.push_back(VirtAddr{begin + i});
    }
  }
  // The function's own branches are not foreign.
  std::erase_if(found, [&](VirtAddr at) { return at >= flow.function.start && at < flow.end(); });
  return found;
}

// Where it is not known it may be one.
bool TrueBranches::is_instruction(VirtAddr source) {
  if (const auto range = ranges_->find(source)) {
    auto known = described_.find(range->start);
    if (known == described_.end()) {
      std::vector<VirtAddr> starts;
      if (const auto code = ranges_->decode(*range)) {
        for (const CodeInstruction& instruction : *code) starts.push_back(instruction.address);
      }
      known = described_.emplace(range->start, std::move(starts)).first;
    }
    const std::vector<VirtAddr>& starts = known->second;
    return starts.empty() || std::ranges::binary_search(starts, source);
  }
  const auto behind = std::ranges::upper_bound(gaps_, source, {}, &Gap::start);
  if (behind == gaps_.begin()) return true;
  const Gap& gap = *std::prev(behind);
  return source >= gap.end || std::ranges::binary_search(gap.starts, source);
}

void TrueBranches::keep(FunctionFlow& flow) {
  if (!ranges_ || !references_.unread.empty()) return;
  for (CodeTarget& target : flow.targets) {
    if ((target.kinds & kTargetForeign) == 0) continue;
    const auto found = sources(flow, target.address);
    const bool real =
        std::ranges::any_of(found, [&](VirtAddr source) { return is_instruction(source); });
    if (!real && !found.empty()) target.kinds &= ~kTargetForeign;
  }
  std::erase_if(flow.targets, [](const CodeTarget& target) { return target.kinds == 0; });
}

}  // namespace reprobe
