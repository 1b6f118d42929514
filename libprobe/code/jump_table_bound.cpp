#include "libprobe/code/jump_table_bound.hpp"

#include <algorithm>

namespace reprobe {
namespace {

// Compilers put the comparison a few instructions before the load.
constexpr unsigned kLongestPath = 64;

// The index as it is known while the path is walked backwards.
struct Index {
  std::optional<unsigned> reg;          // in a register, or
  std::optional<MemoryOperand> memory;  // in memory, read by the load that was passed last
  unsigned width{4};                    // bytes of it that are used; the rest is cleared
};

bool same_place(const MemoryOperand& a, const MemoryOperand& b) {
  return a.base == b.base && a.index == b.index && a.scale == b.scale &&
         a.displacement == b.displacement && a.rip_relative == b.rip_relative &&
         a.segment == b.segment;
}

unsigned operand_width(const X86Encoding& e, bool byte) {
  return byte ? 1 : e.operand16 ? 2 : e.rex_w ? 8 : 4;
}

enum class Limit : std::uint8_t { none, exclusive, inclusive };

// What a conditional jump tells about an unsigned index: whether the limit itself still leads to
// the table. From the low four bits of its opcode.
Limit unsigned_limit(const CodeInstruction& jump, bool taken) {
  if (jump.kind != InstructionKind::conditional) return Limit::none;
  switch (jump.encoding.opcode & 0x0f) {
    case 0x2:  // jb
      return taken ? Limit::exclusive : Limit::none;
    case 0x3:  // jae
      return taken ? Limit::none : Limit::exclusive;
    case 0x6:  // jbe
      return taken ? Limit::inclusive : Limit::none;
    case 0x7:  // ja
      return taken ? Limit::none : Limit::inclusive;
    default:
      return Limit::none;
  }
}

// cmp of the index with an immediate.
bool compares(const CodeInstruction& code, const Index& index) {
  const X86Encoding& e = code.encoding;
  if (e.map != OpcodeMap::one_byte || code.opaque || !code.immediate) return false;
  const bool accumulator = e.opcode == 0x3c || e.opcode == 0x3d;
  const bool group = e.opcode == 0x80 || e.opcode == 0x81 || e.opcode == 0x83;
  if (!accumulator && (!group || (e.reg & 7) != 7)) return false;
  // All bytes of the index that count have to be compared.
  const unsigned width = operand_width(e, e.opcode == 0x3c || e.opcode == 0x80);
  if (width < index.width) return false;
  if (accumulator) return index.reg == kRax;
  if (!e.is_memory()) {
    // Without REX, 4-7 are the high bytes of the first four registers.
    if (width == 1 && e.rm >= 4 && e.rm < 8) return false;
    return index.reg == e.rm;
  }
  return index.memory && code.memory && same_place(*index.memory, *code.memory);
}

// Takes the index back over an instruction that writes its register.
bool pass_write(const CodeInstruction& code, Index& index) {
  const X86Encoding& e = code.encoding;
  const bool one = e.map == OpcodeMap::one_byte;
  const bool zero_extends = e.map == OpcodeMap::map_0f && (e.opcode == 0xb6 || e.opcode == 0xb7);
  const bool moves = one && (e.opcode == 0x8b || (e.opcode == 0x63 && e.rex_w));
  if ((zero_extends || moves) && e.reg == index.reg && !e.operand16) {
    if (zero_extends) index.width = std::min(index.width, e.opcode == 0xb6 ? 1U : 2U);
    if (e.is_memory()) {
      if (!code.memory) return false;
      index.memory = code.memory;
      index.reg.reset();
      return true;
    }
    const bool high_byte = zero_extends && e.opcode == 0xb6 && e.rm >= 4 && e.rm < 8;
    index.reg = e.rm;
    return !high_byte;
  }
  if (one && e.opcode == 0x89 && e.mod == 3 && e.rm == index.reg && !e.operand16) {
    index.reg = e.reg;
    return true;
  }
  if (one && e.opcode == 0x98 && e.rex_w) return true;  // cdqe
  // GCC -O0 scales the index before the load: lea 0(,%rax,4),%rdx.
  const bool scales = one && e.opcode == 0x8d && e.reg == index.reg && !e.base && e.index &&
                      code.memory && code.memory->displacement == 0;
  if (scales) index.reg = *e.index;
  return scales;
}

// and with a constant: a bound without a comparison.
std::optional<std::uint64_t> masked(const CodeInstruction& code, const Index& index) {
  const X86Encoding& e = code.encoding;
  if (e.map != OpcodeMap::one_byte || !code.immediate || e.operand16) return std::nullopt;
  const bool group =
      (e.opcode == 0x81 || e.opcode == 0x83) && (e.reg & 7) == 4 && e.mod == 3 && e.rm == index.reg;
  const bool accumulator = e.opcode == 0x25 && index.reg == kRax;
  if (!group && !accumulator) return std::nullopt;
  if (*code.immediate < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*code.immediate) + 1;
}

std::optional<std::uint64_t> sane(std::uint64_t count) {
  if (count == 0 || count > kMostTableEntries) return std::nullopt;
  return count;
}

// Which register of the load's operand is the index.
std::optional<Index> index_of(const CodeInstruction& load) {
  if (!load.memory || !load.memory->index) return std::nullopt;
  if (load.memory->scale == 4) return Index{load.memory->index, {}, 4};
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> table_bound(const CodePiece& piece, const OriginFinder& finder,
                                         std::size_t load) {
  auto index = index_of(piece.code[load]);
  Limit limit = Limit::none;  // of the conditional jump whose comparison is looked for
  std::size_t at = load;
  for (unsigned step = 0; index && step < kLongestPath; ++step) {
    const auto from = finder.predecessors(at);
    if (at == 0 || !from || from->size() != 1) return std::nullopt;
    const std::size_t p = from->front();
    const CodeInstruction& code = piece.code[p];
    const bool fell_through = p + 1 == at && code.target != piece.code[at].address;
    const bool branched = p + 1 != at;
    if (code.opaque || code.kind == InstructionKind::call ||
        code.kind == InstructionKind::indirect_call)
      return std::nullopt;
    const Limit passed = fell_through || branched ? unsigned_limit(code, branched) : Limit::none;
    if (passed != Limit::none) {
      limit = passed;
    } else if (limit != Limit::none && compares(code, *index)) {
      const auto value = static_cast<std::uint64_t>(*code.immediate);
      if (*code.immediate < 0) return std::nullopt;
      return sane(value + (limit == Limit::inclusive ? 1 : 0));
    } else {
      if ((code.writes & kFlagsBit) != 0) limit = Limit::none;
      const bool writes_index = index->reg && (code.writes & (1U << *index->reg)) != 0;
      if (writes_index) {
        if (const auto count = masked(code, *index)) return sane(*count);
        if (!pass_write(code, *index)) return std::nullopt;
      } else if (index->memory && code.kind == InstructionKind::other) {
        return std::nullopt;  // it may write the memory or its address
      }
    }
    at = p;
  }
  return std::nullopt;
}

}  // namespace reprobe
