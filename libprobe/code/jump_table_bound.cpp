#include "libprobe/code/jump_table_bound.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace reprobe {
namespace {

// Compilers put the comparison a few instructions before the load.
constexpr unsigned kLongestPath = 64;
constexpr std::size_t kMostLimits = 4;

// Where a value stands while the path is walked backwards: in a register, or in memory.
struct BoundPlace {
  std::optional<unsigned> reg;
  std::optional<MemoryOperand> memory;
  unsigned width{};   // its low bytes that count
  bool scaled{true};  // false: still to be multiplied by the size of an entry
};

// A comparison with a constant that the path passed.
struct Limit {
  BoundPlace place;
  std::uint64_t count{};  // values that pass
};

bool same_memory(const MemoryOperand& a, const MemoryOperand& b) {
  return a.base == b.base && a.index == b.index && a.scale == b.scale &&
         a.displacement == b.displacement && a.rip_relative == b.rip_relative &&
         a.segment == b.segment;
}

bool same_place(const BoundPlace& a, const BoundPlace& b) {
  if (a.reg || b.reg) return a.reg == b.reg;
  return a.memory && b.memory && same_memory(*a.memory, *b.memory);
}

bool is_one_byte(const CodeInstruction& code, unsigned opcode) {
  return code.encoding.map == OpcodeMap::one_byte && code.encoding.opcode == opcode;
}

unsigned extension(const CodeInstruction& code) { return code.encoding.reg & 7; }

enum class Passed : std::uint8_t { none, below, up_to };

// What a conditional jump tells about an unsigned value, by the low four bits of its opcode.
Passed unsigned_limit(const CodeInstruction& jump, bool taken) {
  const X86Encoding& e = jump.encoding;
  const bool jcc = (e.map == OpcodeMap::one_byte && (e.opcode & 0xf0) == 0x70) ||
                   (e.map == OpcodeMap::map_0f && (e.opcode & 0xf0) == 0x80);
  if (jump.kind != InstructionKind::conditional || !jcc) return Passed::none;
  switch (e.opcode & 0x0f) {
    case 0x2:  // jb
      return taken ? Passed::below : Passed::none;
    case 0x3:  // jae
      return taken ? Passed::none : Passed::below;
    case 0x6:  // jbe
      return taken ? Passed::up_to : Passed::none;
    case 0x7:  // ja
      return taken ? Passed::none : Passed::up_to;
    default:
      return Passed::none;
  }
}

// What cmp or sub compares with an immediate.
std::optional<BoundPlace> compared(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (e.map != OpcodeMap::one_byte || !code.immediate) return std::nullopt;
  const bool accumulator = e.opcode == 0x3c || e.opcode == 0x3d || e.opcode == 0x2d;
  const bool group = e.opcode == 0x80 || e.opcode == 0x81 || e.opcode == 0x83;
  if (!accumulator && (!group || (extension(code) != 7 && extension(code) != 5)))
    return std::nullopt;
  const bool byte = e.opcode == 0x3c || e.opcode == 0x80;
  BoundPlace place;
  place.width = byte ? 1 : e.operand16 ? 2 : e.rex_w ? 8 : 4;
  if (accumulator) {
    place.reg = kRax;
  } else if (e.is_memory()) {
    place.memory = code.memory;
  } else {
    // Without REX, 4-7 are the high bytes of the first four registers.
    if (byte && e.rm >= 4 && e.rm < 8) return std::nullopt;
    place.reg = e.rm;
  }
  return place;
}

// Instructions of registers alone that leave memory as it is (Intel SDM volume 2, appendix A). What
// is not among them may write to the stack, or where %rdi points.
bool uses_registers_only(const X86Encoding& e) {
  if (e.map == OpcodeMap::map_0f) {
    constexpr std::array<std::pair<unsigned, unsigned>, 5> kRanges{
        {{0x10, 0x1f}, {0x28, 0x2f}, {0x40, 0x4f}, {0x90, 0x9f}, {0xaf, 0xcf}}};
    return std::ranges::any_of(
        kRanges, [&](const auto& r) { return e.opcode >= r.first && e.opcode <= r.second; });
  }
  constexpr std::array<std::pair<unsigned, unsigned>, 8> kRanges{{{0x00, 0x3d},
                                                                  {0x58, 0x5f},
                                                                  {0x63, 0x63},
                                                                  {0x80, 0x8d},
                                                                  {0x90, 0x99},
                                                                  {0xa8, 0xa9},
                                                                  {0xb0, 0xc1},
                                                                  {0xd0, 0xd3}}};
  const bool group = e.opcode == 0xc6 || e.opcode == 0xc7 || e.opcode == 0xf6 || e.opcode == 0xf7 ||
                     e.opcode == 0x69 || e.opcode == 0x6b;
  return e.map == OpcodeMap::one_byte && (group || std::ranges::any_of(kRanges, [&](const auto& r) {
                                            return e.opcode >= r.first && e.opcode <= r.second;
                                          }));
}

bool may_write_memory(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (code.kind != InstructionKind::other) return false;  // jumps, nops
  if (!code.memory) return !uses_registers_only(e);
  if (e.map == OpcodeMap::map_0f) {
    // cmov, imul, movzx, popcnt, bsf, bsr, movsx
    constexpr std::array<unsigned, 8> kReads{0xaf, 0xb6, 0xb7, 0xb8, 0xbc, 0xbd, 0xbe, 0xbf};
    const bool cmov = (e.opcode & 0xf0) == 0x40;
    return !cmov && std::ranges::find(kReads, e.opcode) == kReads.end();
  }
  if (e.map != OpcodeMap::one_byte) return true;
  constexpr std::array<unsigned, 11> reads{0x8b, 0x8d, 0x63, 0x3b, 0x3a, 0x39,
                                           0x38, 0x03, 0x2b, 0x84, 0x85};
  if (std::ranges::find(reads, e.opcode) != reads.end()) return false;
  const bool compare = (e.opcode >= 0x80 && e.opcode <= 0x83) && extension(code) == 7;
  return !compare;
}

// Two words of one frame that do not overlap.
bool apart(const MemoryOperand& a, const MemoryOperand& b) {
  const bool frame = a.base && a.base == b.base && !a.index && !b.index && !a.segment &&
                     !b.segment && (*a.base == kRsp || *a.base == kRbp);
  const std::int64_t distance = a.displacement - b.displacement;
  return frame && (distance >= 8 || distance <= -8);
}

// Takes a place in memory back over an instruction; false where it is lost.
bool pass_memory(const CodeInstruction& code, BoundPlace& place) {
  const X86Encoding& e = code.encoding;
  const MemoryOperand& memory = *place.memory;
  if (memory.base && (code.writes & (1U << *memory.base)) != 0) return false;
  if (memory.index && (code.writes & (1U << *memory.index)) != 0) return false;
  if (!may_write_memory(code)) return true;
  const bool stores = is_one_byte(code, 0x89) && code.memory && !e.operand16;
  if (!stores) return false;
  if (!same_memory(*code.memory, memory)) return apart(*code.memory, memory);
  if (place.width > (e.rex_w ? 8U : 4U)) return false;
  place.reg = e.reg;
  place.memory.reset();
  return true;
}

// Takes a register back over an instruction that writes it; false where the value is lost.
bool pass_register(const CodeInstruction& code, BoundPlace& place) {
  const X86Encoding& e = code.encoding;
  const bool one = e.map == OpcodeMap::one_byte;
  const bool zero_extends = e.map == OpcodeMap::map_0f && (e.opcode == 0xb6 || e.opcode == 0xb7);
  const bool moves = one && (e.opcode == 0x8b || (e.opcode == 0x63 && e.rex_w));
  if (e.operand16) return false;
  if ((zero_extends || moves) && e.reg == place.reg) {
    const bool byte = zero_extends && e.opcode == 0xb6;
    const unsigned width = byte ? 1 : zero_extends ? 2 : e.rex_w && e.opcode == 0x8b ? 8 : 4;
    place.width = std::min(place.width, width);
    if (e.is_memory()) {
      place.memory = code.memory;
      place.reg.reset();
      return place.memory.has_value();
    }
    place.reg = e.rm;
    return !byte || e.rm < 4 || e.rm >= 8;
  }
  if (one && e.opcode == 0x89 && e.mod == 3 && e.rm == place.reg) {
    place.reg = e.reg;
    if (!e.rex_w) place.width = std::min(place.width, 4U);
    return true;
  }
  if (one && e.opcode == 0x98 && e.rex_w) {  // cdqe
    place.width = std::min(place.width, 4U);
    return true;
  }
  // GCC -O0 multiplies before the load: lea 0(,%rax,4),%rdx.
  const bool scales = code.is_lea() && e.reg == place.reg && !e.base && e.index && e.scale == 4 &&
                      code.memory && code.memory->displacement == 0 && !place.scaled;
  if (scales) {
    place.reg = *e.index;
    place.scaled = true;
  }
  return scales;
}

bool pass(const CodeInstruction& code, BoundPlace& place) {
  if (place.memory) return pass_memory(code, place);
  if ((code.writes & (1U << *place.reg)) == 0) return true;
  return pass_register(code, place);
}

// and with a constant: a bound without a comparison.
std::optional<std::uint64_t> masked(const CodeInstruction& code, const BoundPlace& index) {
  const X86Encoding& e = code.encoding;
  if (e.map != OpcodeMap::one_byte || !code.immediate || e.operand16 || !index.scaled)
    return std::nullopt;
  const bool group = (e.opcode == 0x81 || e.opcode == 0x83) && extension(code) == 4 && e.mod == 3 &&
                     e.rm == index.reg;
  const bool accumulator = e.opcode == 0x25 && index.reg == kRax;
  if ((!group && !accumulator) || *code.immediate < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*code.immediate) + 1;
}

std::optional<std::uint64_t> sane(std::uint64_t count) {
  if (count == 0 || count > kMostTableEntries) return std::nullopt;
  return count;
}

class BoundWalk {
 public:
  BoundWalk(const CodePiece& piece, const OriginFinder& finder, const BoundPlace& index)
      : piece_(piece), finder_(finder), index_(index) {}

  std::optional<std::uint64_t> run(std::size_t at) {
    for (unsigned step = 0; step < kLongestPath; ++step) {
      const auto from = finder_.predecessors(at, 1);
      if (at == 0 || !from || from->size() != 1) return std::nullopt;
      const std::size_t p = from->front();
      const CodeInstruction& code = piece_.code[p];
      const bool called =
          code.kind == InstructionKind::call || code.kind == InstructionKind::indirect_call;
      if (code.opaque || called) return std::nullopt;
      if (index_.reg && (code.writes & (1U << *index_.reg)) != 0) {
        if (const auto count = masked(code, index_)) return sane(*count);
      }
      if (!take(code, p + 1 != at, piece_.code[at].address)) return std::nullopt;
      for (const Limit& limit : limits_) {
        const bool whole = index_.scaled && limit.place.width >= index_.width;
        if (whole && same_place(limit.place, index_)) return sane(limit.count);
      }
      at = p;
    }
    return std::nullopt;
  }

 private:
  // Goes back over one instruction; false where the index is lost.
  bool take(const CodeInstruction& code, bool branched, VirtAddr to) {
    const bool both = !branched && code.target == to;  // it leads there either way
    const Passed passed = both ? Passed::none : unsigned_limit(code, branched);
    const auto place = passed_ == Passed::none ? std::nullopt : compared(code);
    if (!pass(code, index_)) return false;
    std::erase_if(limits_, [&](Limit& limit) { return !pass(code, limit.place); });
    if (place && *code.immediate >= 0 && limits_.size() < kMostLimits) {
      const auto value = static_cast<std::uint64_t>(*code.immediate);
      limits_.push_back({*place, value + (passed_ == Passed::up_to ? 1 : 0)});
    }
    if ((code.writes & kFlagsBit) != 0) passed_ = Passed::none;
    if (passed != Passed::none) passed_ = passed;
    return true;
  }

  const CodePiece& piece_;
  const OriginFinder& finder_;
  BoundPlace index_;
  std::vector<Limit> limits_;
  Passed passed_{};  // by a jump whose comparison is still to come
};

}  // namespace

std::optional<std::uint64_t> table_bound(const CodePiece& piece, const OriginFinder& finder,
                                         std::size_t load) {
  const auto& memory = piece.code[load].memory;
  if (!memory || !memory->index) return std::nullopt;
  // The upper half of the index is 0, or the program would read far outside the table.
  if (memory->scale == 4)
    return BoundWalk(piece, finder, BoundPlace{memory->index, {}, 4, true}).run(load);
  if (memory->scale != 1 || !memory->base) return std::nullopt;
  for (const auto& reg : {memory->base, memory->index}) {
    const auto count = BoundWalk(piece, finder, BoundPlace{reg, {}, 4, false}).run(load);
    if (count) return count;
  }
  return std::nullopt;
}

}  // namespace reprobe
