#include "libprobe/code/flag_use.hpp"

#include <unordered_set>
#include <vector>

namespace reprobe {
namespace {

// Paths on which the flags live longer than this are none that a compiler makes.
constexpr std::size_t kMostSteps = 4096;

// Intel SDM volume 2, appendix A: rows of the one-byte map, and /digits of group 1.
enum Arithmetic : unsigned { kAdc = 2, kSbb = 3 };

// The operation of an instruction of the first rows of the one-byte map, or of group 1.
std::optional<unsigned> arithmetic(const X86Encoding& e) {
  if (e.map != OpcodeMap::one_byte) return std::nullopt;
  if (e.opcode < 0x40 && (e.opcode & 7) < 6) return e.opcode >> 3;
  if (e.opcode >= 0x80 && e.opcode <= 0x83) return e.reg & 7;
  return std::nullopt;
}

// Jcc, SETcc, CMOVcc: the condition.
std::optional<unsigned> condition(const X86Encoding& e) {
  const unsigned row = e.opcode & 0xf0U;
  const bool short_jump = e.map == OpcodeMap::one_byte && row == 0x70;
  const bool other = e.map == OpcodeMap::map_0f && (row == 0x80 || row == 0x90 || row == 0x40);
  if (!short_jump && !other) return std::nullopt;
  return e.opcode & 0xfU;
}

// May a condition, by its number without the lowest bit, which negates it, be asked where no other
// flag may be read (Intel SDM volume 2, appendix B, table B-1)?
bool reads_only(unsigned condition, StatusFlag flag) {
  constexpr unsigned kBelow = 1, kEqual = 2, kBelowOrEqual = 3;
  const bool carry = flag == StatusFlag::carry || flag == StatusFlag::carry_and_zero;
  const bool zero = flag == StatusFlag::zero || flag == StatusFlag::carry_and_zero;
  switch (condition / 2) {
    case kBelow:
      return carry;
    case kEqual:
      return zero;
    case kBelowOrEqual:
      return carry && zero;
    default:
      return false;
  }
}

}  // namespace

bool reads_more(StatusFlag flag, const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (const auto cc = condition(e)) return !reads_only(*cc, flag);
  if (const auto operation = arithmetic(e); operation == kAdc || operation == kSbb)
    return flag != StatusFlag::carry && flag != StatusFlag::carry_and_zero;
  if (code.kind == InstructionKind::loop || code.kind == InstructionKind::transaction) return true;
  const bool one_byte = e.map == OpcodeMap::one_byte;
  const bool rotate =
      one_byte && ((e.opcode >= 0xd0 && e.opcode <= 0xd3) || e.opcode == 0xc0 || e.opcode == 0xc1);
  if (rotate && ((e.reg & 7) == 2 || (e.reg & 7) == 3)) return true;    // rcl, rcr
  if (one_byte && (e.opcode == 0x9c || e.opcode == 0x9f)) return true;  // pushf, lahf
  if (one_byte && (e.opcode == 0xda || e.opcode == 0xdb)) return true;  // fcmovcc among others
  return (code.reads & kFlagsBit) != 0;
}

namespace {

// Shifts by a constant other than 0 (Intel SDM volume 2, SAL/SAR/SHL/SHR).
bool shifts(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  const unsigned digit = e.reg & 7;
  if (e.map != OpcodeMap::one_byte || digit < 4) return false;
  if (e.opcode == 0xd0 || e.opcode == 0xd1) return true;
  const bool by_immediate = e.opcode == 0xc0 || e.opcode == 0xc1;
  return by_immediate && code.immediate && (*code.immediate & 0x1f) != 0;
}

}  // namespace

bool overwrites_flags(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (arithmetic(e) || shifts(code)) return true;
  if (e.map == OpcodeMap::one_byte) {
    const bool test = e.opcode == 0x84 || e.opcode == 0x85 || e.opcode == 0xa8 || e.opcode == 0xa9;
    const bool imul = e.opcode == 0x69 || e.opcode == 0x6b;
    const unsigned digit = e.reg & 7;  // of group 3: 2 is not, which has no flags
    const bool group3 = (e.opcode == 0xf6 || e.opcode == 0xf7) && digit != 2;
    return test || imul || group3;
  }
  if (e.map != OpcodeMap::map_0f) return false;
  switch (e.opcode) {
    case 0x2e:  // ucomis
    case 0x2f:  // comis
    case 0xaf:  // imul
    case 0xb0:  // cmpxchg
    case 0xb1:
    case 0xc0:  // xadd
    case 0xc1:
      return true;
    default:
      return false;
  }
}

namespace {

class FlagWalk {
 public:
  FlagWalk(StatusFlag flag, const CodeRanges& ranges, const FunctionFlow& flow,
           std::uint64_t& budget)
      : flag_(flag), ranges_(ranges), flow_(flow), budget_(budget) {}

  bool run(VirtAddr after) {
    go_to(after);
    while (!open_.empty()) {
      if (seen_.size() > kMostSteps || budget_ == 0) return false;
      --budget_;
      const VirtAddr at = open_.back();
      open_.pop_back();
      const auto code = decode(at);
      if (!code || code->opaque || !step(*code)) return false;
    }
    return true;
  }

 private:
  void go_to(VirtAddr at) {
    if (seen_.insert(at.value).second) open_.push_back(at);
  }

  [[nodiscard]] bool in_function(VirtAddr at) const {
    return at >= flow_.function.start && at < flow_.end();
  }

  [[nodiscard]] std::optional<CodeInstruction> decode(VirtAddr at) const {
    if (const CodeInstruction* code = flow_.at(at)) return *code;
    return ranges_.decode_at(at);
  }

  bool step(const CodeInstruction& code) {
    switch (code.kind) {
      case InstructionKind::call:
      case InstructionKind::indirect_call:
      case InstructionKind::ret:
      case InstructionKind::trap:
        return true;
      case InstructionKind::indirect_jump:
        return leave_indirectly(code);
      default:
        break;
    }
    if (reads_more(flag_, code)) return false;
    if (overwrites_flags(code)) return true;
    if (code.target) {
      const VirtAddr to = *code.target;
      const bool tail_call =
          !in_function(to) && (ranges_.is_function(to) || ranges_.is_linkage(to));
      if (!tail_call) go_to(to);
    }
    if (!code.ends_block()) go_to(code.end());
    return true;
  }

  // It goes to some target of the function, or to another function.
  bool leave_indirectly(const CodeInstruction& jump) {
    if (!flow_.complete || !in_function(jump.address)) return false;
    for (const CodeTarget& target : flow_.targets) {
      if (flow_.at(target.address) != nullptr) go_to(target.address);
    }
    return true;
  }

  StatusFlag flag_;
  const CodeRanges& ranges_;
  const FunctionFlow& flow_;
  std::uint64_t& budget_;
  std::vector<VirtAddr> open_;
  std::unordered_set<std::uint64_t> seen_;
};

}  // namespace

bool only_reads(StatusFlag flag, const CodeRanges& ranges, const FunctionFlow& flow, VirtAddr after,
                std::uint64_t& budget) {
  return FlagWalk(flag, ranges, flow, budget).run(after);
}

}  // namespace reprobe
