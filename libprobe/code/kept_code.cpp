#include "libprobe/code/kept_code.hpp"

#include <algorithm>
#include <iterator>

namespace reprobe {
namespace {

// What may raise a signal where its memory is not there, or by what it computes. Memory at the
// stack pointer is there.
bool may_fault(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  const bool one_byte = e.map == OpcodeMap::one_byte;
  const bool divides = one_byte && (e.opcode == 0xf6 || e.opcode == 0xf7) && (e.reg & 7) >= 6;
  if (divides || code.opaque || code.kind == InstructionKind::trap) return true;
  if (code.kind == InstructionKind::nop || code.is_lea()) return false;
  // String operations, xlat and moves of an absolute address have no operand of their own.
  const bool implicit = one_byte && ((e.opcode >= 0xa0 && e.opcode <= 0xa7) ||
                                     (e.opcode >= 0xaa && e.opcode <= 0xaf) || e.opcode == 0xd7);
  return implicit || (code.memory && code.memory->base != kRsp);
}

}  // namespace

KeptRanges::KeptRanges(std::vector<KeptCode> ranges) {
  std::ranges::sort(ranges, {}, &KeptCode::start);
  for (const KeptCode& range : ranges) {
    std::vector<KeptCode>& same = ranges_.at(static_cast<std::size_t>(range.how));
    if (!same.empty() && range.start < same.back().end) {
      same.back().end = std::max(same.back().end, range.end);
    } else {
      same.push_back(range);
    }
  }
}

std::optional<std::string_view> KeptRanges::find(KeptHow how, VirtAddr begin, VirtAddr end) const {
  const std::vector<KeptCode>& ranges = ranges_.at(static_cast<std::size_t>(how));
  const auto behind = std::ranges::lower_bound(ranges, end, {}, &KeptCode::start);
  if (behind == ranges.begin() || std::prev(behind)->end <= begin) return std::nullopt;
  return std::prev(behind)->why;
}

std::optional<std::string_view> KeptRanges::why_stays(const CodeInstruction& code) const {
  for (const KeptHow how : {KeptHow::bytes, KeptHow::address}) {
    if (const auto why = find(how, code.address, code.end())) return why;
  }
  return may_fault(code) ? find(KeptHow::faults, code.address, code.end()) : std::nullopt;
}

std::optional<std::string_view> KeptRanges::why_kept(VirtAddr begin, VirtAddr end) const {
  return find(KeptHow::bytes, begin, end);
}

}  // namespace reprobe
