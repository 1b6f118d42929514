#include "libprobe/code/decode_rules.hpp"

#include "libprobe/code/machine.hpp"

namespace reprobe {
namespace {

// `count` bits of `word` from bit `low` (0: least significant).
constexpr std::uint64_t bits(std::uint64_t word, unsigned low, unsigned count) {
  return (word >> low) & ((std::uint64_t{1} << count) - 1);
}

constexpr std::uint64_t sign_extend(std::uint64_t value, unsigned width) {
  const std::uint64_t sign = std::uint64_t{1} << (width - 1);
  return (value ^ sign) - sign;
}

// Flow and target of one instruction; `offset` is relative to the instruction.
struct Branch {
  Flow flow{Flow::next};
  std::optional<std::uint64_t> offset;
};

// Arm ARM (DDI 0487), C4.1.
Branch aarch64_branch(std::uint64_t w) {
  if (bits(w, 26, 5) == 0x05)  // b, bl
    return {bits(w, 31, 1) != 0 ? Flow::call : Flow::jump, sign_extend(bits(w, 0, 26), 26) << 2};
  if (bits(w, 24, 8) == 0x54 || bits(w, 25, 6) == 0x1a)  // b.cond, cbz, cbnz
    return {Flow::conditional, sign_extend(bits(w, 5, 19), 19) << 2};
  if (bits(w, 25, 6) == 0x1b)  // tbz, tbnz
    return {Flow::conditional, sign_extend(bits(w, 5, 14), 14) << 2};
  if (bits(w, 25, 7) == 0x6b) {  // br, blr, ret and their authenticating forms
    switch (bits(w, 21, 3)) {
      case 0:
        return {Flow::jump, {}};
      case 1:
        return {Flow::call, {}};
      default:
        return {Flow::ret, {}};
    }
  }
  const bool brk_or_hlt = (w & 0xff80001f) == 0xd4000000 && bits(w, 21, 2) != 0;
  if (brk_or_hlt || bits(w, 16, 16) == 0) return {Flow::trap, {}};  // udf
  return {};
}

// Arm ARM for ARMv7-A (DDI 0406), A5. The condition turns a jump into a conditional one.
Branch arm_branch(std::uint64_t w) {
  const std::uint64_t condition = bits(w, 28, 4);
  const Flow jump = condition == 14 ? Flow::jump : Flow::conditional;
  const auto relative = [&] { return (sign_extend(bits(w, 0, 24), 24) << 2) + 8; };
  if (condition == 15) {
    if (bits(w, 25, 3) == 5) return {Flow::call, relative() + (bits(w, 24, 1) << 1)};  // blx
    return {};
  }
  if (bits(w, 24, 4) == 0xa) return {jump, relative()};
  if (bits(w, 24, 4) == 0xb) return {Flow::call, relative()};
  if ((w & 0x0ffffff0) == 0x012fff30) return {Flow::call, {}};  // blx rm
  const bool returns = (w & 0x0fffffff) == 0x012fff1e           // bx lr
                       || (w & 0x0e108000) == 0x08108000;       // ldm {..., pc}
  if (returns) return {condition == 14 ? Flow::ret : Flow::conditional, {}};
  const bool writes_pc = (w & 0x0ffffff0) == 0x012fff10      // bx rm
                         || (w & 0x0c50f000) == 0x0410f000   // ldr pc
                         || (w & 0x0fe0f000) == 0x01a0f000   // mov pc
                         || (w & 0x0de0f000) == 0x0080f000;  // add pc
  if (writes_pc) return {jump, {}};
  const bool traps = (w & 0xfff000f0) == 0xe7f000f0 || (w & 0x0ff000f0) == 0x01200070;
  if (traps) return {Flow::trap, {}};  // udf, bkpt
  return {};
}

// Arm ARM for ARMv7-A, A6.2. Offsets count from the instruction's address + 4.
Branch thumb_branch16(std::uint64_t h) {
  if (bits(h, 12, 4) == 0xd) {
    const std::uint64_t condition = bits(h, 8, 4);
    if (condition == 14) return {Flow::trap, {}};  // udf
    if (condition == 15) return {};                // svc
    return {Flow::conditional, (sign_extend(bits(h, 0, 8), 8) << 1) + 4};
  }
  if (bits(h, 11, 5) == 0x1c) return {Flow::jump, (sign_extend(bits(h, 0, 11), 11) << 1) + 4};
  if ((h & 0xf500) == 0xb100)  // cbz, cbnz: forwards only
    return {Flow::conditional, (bits(h, 9, 1) << 6) + (bits(h, 3, 5) << 1) + 4};
  if ((h & 0xff87) == 0x4780) return {Flow::call, {}};               // blx rm
  if (h == 0x4770 || bits(h, 8, 8) == 0xbd) return {Flow::ret, {}};  // bx lr, pop {..., pc}
  if ((h & 0xff87) == 0x4700 || (h & 0xff87) == 0x4687 || (h & 0xff87) == 0x4487)
    return {Flow::jump, {}};                           // bx rm, mov pc, add pc
  if (bits(h, 8, 8) == 0xbe) return {Flow::trap, {}};  // bkpt
  return {};
}

// The same manual, A6.3; `w` holds the first halfword in its upper half.
Branch thumb_branch32(std::uint64_t w, VirtAddr address) {
  const std::uint64_t first = w >> 16;
  if (bits(first, 11, 5) == 0x1e && bits(w, 15, 1) != 0) {
    const std::uint64_t s = bits(w, 26, 1);
    const std::uint64_t j1 = bits(w, 13, 1);
    const std::uint64_t j2 = bits(w, 11, 1);
    if (bits(w, 14, 1) == 0 && bits(w, 12, 1) == 0) {
      if (bits(w, 23, 3) == 7)  // not a branch: msr, hints, udf.w
        return bits(w, 20, 12) == 0xf7f && bits(w, 12, 4) == 0xa ? Branch{Flow::trap, {}}
                                                                 : Branch{};
      const std::uint64_t offset =
          s << 20 | j2 << 19 | j1 << 18 | bits(w, 16, 6) << 12 | bits(w, 0, 11) << 1;
      return {Flow::conditional, sign_extend(offset, 21) + 4};
    }
    const std::uint64_t i1 = 1 ^ j1 ^ s;
    const std::uint64_t i2 = 1 ^ j2 ^ s;
    std::uint64_t offset =
        s << 24 | i1 << 23 | i2 << 22 | bits(w, 16, 10) << 12 | bits(w, 0, 11) << 1;
    offset = sign_extend(offset, 25) + 4;
    if (bits(w, 14, 1) == 0) return {Flow::jump, offset};
    // blx counts from the address rounded down to 4.
    if (bits(w, 12, 1) == 0) offset -= address.value & 2;
    return {Flow::call, offset};
  }
  if ((first & 0xfff0) == 0xe8d0 && (w & 0xffe0) == 0xf000) return {Flow::jump, {}};  // tbb, tbh
  const bool loads_pc = bits(w, 15, 1) != 0;
  if (loads_pc && ((first & 0xffd0) == 0xe890 || (first & 0xffd0) == 0xe910))
    return {Flow::ret, {}};                                                         // ldmia, ldmdb
  if ((first & 0xff70) == 0xf850 && bits(w, 12, 4) == 15) return {Flow::jump, {}};  // ldr pc
  return {};
}

// Power ISA 3.1, book I, 2.4.
Branch ppc_branch(std::uint64_t w) {
  const std::uint64_t opcode = bits(w, 26, 6);
  const bool links = bits(w, 0, 1) != 0;
  // BO = 1z1zz: the branch is always taken.
  const bool always = (bits(w, 21, 5) & 0x14) == 0x14;
  const Flow flow = links ? Flow::call : always ? Flow::jump : Flow::conditional;
  const bool relative = bits(w, 1, 1) == 0;
  if (opcode == 18) {
    const Flow b = links ? Flow::call : Flow::jump;
    return relative ? Branch{b, sign_extend(w & 0x03fffffc, 26)} : Branch{b, {}};
  }
  if (opcode == 16) return relative ? Branch{flow, sign_extend(w & 0xfffc, 16)} : Branch{flow, {}};
  if (opcode == 19) {
    const std::uint64_t extended = bits(w, 1, 10);
    if (extended == 16) return {flow == Flow::jump ? Flow::ret : flow, {}};  // bclr
    if (extended == 528 || extended == 560) return {flow, {}};               // bcctr, bctar
  }
  if (w == 0x7fe00008 || w == 0) return {Flow::trap, {}};  // trap; the illegal instruction
  return {};
}

// z/Architecture Principles of Operation, chapter 7 and appendix B. `w` holds the instruction in
// its `size` lowest bytes.
Branch s390_branch(std::uint64_t w, unsigned size) {
  const std::uint64_t op = w >> (8 * (size - 1));
  const std::uint64_t mask = bits(w, 8 * (size - 1) - 4, 4);  // M1 or R1: the next four bits
  const auto masked = [&](Flow always) {
    return mask == 0 ? Flow::next : mask == 15 ? always : Flow::conditional;
  };
  if (size == 2) {
    if (w <= 1) return {Flow::trap, {}};  // 0000 and 0001 stop the program: abort(), breakpoints
    const std::uint64_t target = bits(w, 0, 4);
    if (op == 0x07 && target != 0) return {masked(target == 14 ? Flow::ret : Flow::jump), {}};
    if ((op == 0x05 || op == 0x0d) && target != 0) return {Flow::call, {}};  // balr, basr
    if (op == 0x06 && target != 0) return {Flow::conditional, {}};           // bctr
    return {};
  }
  if (size == 4) {
    const std::uint64_t relative = sign_extend(bits(w, 0, 16), 16) << 1;
    if (op == 0x47) return {masked(Flow::jump), {}};        // bc
    if (op == 0x45 || op == 0x4d) return {Flow::call, {}};  // bal, bas
    if (op == 0x46 || op == 0x86 || op == 0x87) return {Flow::conditional, {}};
    if (op == 0x84 || op == 0x85) return {Flow::conditional, relative};  // brxh, brxle
    if (op != 0xa7) return {};
    switch (bits(w, 16, 4)) {
      case 4: {  // brc
        const Flow flow = masked(Flow::jump);
        // GCC's trap jumps to its own second halfword, 0001, which is no instruction.
        if (relative == 2) return {flow == Flow::jump ? Flow::trap : Flow::next, {}};
        return flow == Flow::next ? Branch{} : Branch{flow, relative};
      }
      case 5:  // bras
        return {Flow::call, relative};
      case 6:  // brct
      case 7:  // brctg
        return {Flow::conditional, relative};
      default:
        return {};
    }
  }
  const std::uint64_t relative32 = sign_extend(bits(w, 0, 32), 32) << 1;
  if (op == 0xc0 && bits(w, 32, 4) == 4) {  // brcl
    const Flow flow = masked(Flow::jump);
    return flow == Flow::next ? Branch{} : Branch{flow, relative32};
  }
  if (op == 0xc0 && bits(w, 32, 4) == 5) return {Flow::call, relative32};         // brasl
  if (op == 0xcc && bits(w, 32, 4) == 6) return {Flow::conditional, relative32};  // brcth
  if (op == 0xec) {
    const std::uint64_t low = bits(w, 0, 8);
    const bool branches = low == 0x44 || low == 0x45 || low == 0x64 || low == 0x65 || low == 0x76 ||
                          low == 0x77 || (low >= 0x7c && low <= 0x7f);
    // brxhg, brxlg, and the relative compare-and-branch family.
    if (branches) return {Flow::conditional, sign_extend(bits(w, 16, 16), 16) << 1};
  }
  return {};
}

// RISC-V unprivileged ISA, "C" extension.
Branch riscv_branch16(std::uint64_t h, bool is64) {
  const std::uint64_t quadrant = bits(h, 0, 2);
  const std::uint64_t funct3 = bits(h, 13, 3);
  if (quadrant == 1 && (funct3 == 5 || (funct3 == 1 && !is64))) {  // c.j; c.jal on RV32 only
    const std::uint64_t offset = bits(h, 12, 1) << 11 | bits(h, 8, 1) << 10 | bits(h, 9, 2) << 8 |
                                 bits(h, 6, 1) << 7 | bits(h, 7, 1) << 6 | bits(h, 2, 1) << 5 |
                                 bits(h, 11, 1) << 4 | bits(h, 3, 3) << 1;
    return {funct3 == 5 ? Flow::jump : Flow::call, sign_extend(offset, 12)};
  }
  if (quadrant == 1 && funct3 >= 6) {  // c.beqz, c.bnez
    const std::uint64_t offset = bits(h, 12, 1) << 8 | bits(h, 5, 2) << 6 | bits(h, 2, 1) << 5 |
                                 bits(h, 10, 2) << 3 | bits(h, 3, 2) << 1;
    return {Flow::conditional, sign_extend(offset, 9)};
  }
  if (quadrant == 2 && funct3 == 4 && bits(h, 2, 5) == 0) {
    const std::uint64_t rs1 = bits(h, 7, 5);
    if (bits(h, 12, 1) != 0) return {rs1 == 0 ? Flow::trap : Flow::call, {}};  // c.ebreak, c.jalr
    if (rs1 != 0) return {rs1 == 1 ? Flow::ret : Flow::jump, {}};              // c.jr
  }
  return {};
}

// RISC-V unprivileged ISA, "RV32I", control transfer instructions.
Branch riscv_branch32(std::uint64_t w) {
  const std::uint64_t rd = bits(w, 7, 5);
  switch (bits(w, 0, 7)) {
    case 0x6f: {  // jal
      const std::uint64_t offset =
          bits(w, 31, 1) << 20 | bits(w, 12, 8) << 12 | bits(w, 20, 1) << 11 | bits(w, 21, 10) << 1;
      return {rd == 0 ? Flow::jump : Flow::call, sign_extend(offset, 21)};
    }
    case 0x67: {  // jalr
      const std::uint64_t rs1 = bits(w, 15, 5);
      if (rd != 0) return {Flow::call, {}};
      return {rs1 == 1 || rs1 == 5 ? Flow::ret : Flow::jump, {}};
    }
    case 0x63: {  // beq and its kin
      const std::uint64_t offset =
          bits(w, 31, 1) << 12 | bits(w, 7, 1) << 11 | bits(w, 25, 6) << 5 | bits(w, 8, 4) << 1;
      return {Flow::conditional, sign_extend(offset, 13)};
    }
    default:  // ebreak, unimp
      return w == 0x00100073 || w == 0xc0001073 ? Branch{Flow::trap, {}} : Branch{};
  }
}

struct Decoded {
  unsigned size{};
  Branch branch;
};

std::optional<Decoded> decode_thumb(ByteView bytes, VirtAddr address, std::endian order) {
  const std::uint64_t first = load_uint(bytes, 0, 2, order);
  // 0b11101, 0b11110, 0b11111: the first half of a 32-bit instruction (A6.1).
  if (bits(first, 11, 5) < 0x1d) return Decoded{2, thumb_branch16(first)};
  if (bytes.size() < 4) return std::nullopt;
  return Decoded{4, thumb_branch32(first << 16 | load_uint(bytes, 2, 2, order), address)};
}

std::optional<Decoded> decode_s390(ByteView bytes) {
  // The two highest bits give the length (Principles of Operation, "Instruction Formats").
  const std::uint64_t first = load_uint(bytes, 0, 1, std::endian::big);
  const unsigned size = first < 0x40 ? 2 : first < 0xc0 ? 4 : 6;
  if (bytes.size() < size) return std::nullopt;
  std::uint64_t w = 0;
  for (std::size_t i = 0; i < size; ++i) w = w << 8 | load_uint(bytes, i, 1, std::endian::big);
  if (first == 0 && w > 1) return std::nullopt;  // 00 is no operation code
  return Decoded{size, s390_branch(w, size)};
}

std::optional<Decoded> decode_riscv(ByteView bytes, bool is64) {
  const std::uint64_t first = load_uint(bytes, 0, 2, std::endian::little);
  // The all-zero halfword is defined to be illegal; 11111 in bits 4:0 announces more than 32 bits,
  // of which there are none yet.
  if (first == 0 || bits(first, 0, 5) == 0x1f) return std::nullopt;
  if (bits(first, 0, 2) != 3) return Decoded{2, riscv_branch16(first, is64)};
  if (bytes.size() < 4) return std::nullopt;
  return Decoded{4, riscv_branch32(load_uint(bytes, 0, 4, std::endian::little))};
}

std::optional<Decoded> decode_ppc(ByteView bytes, std::endian order) {
  if (bytes.size() < 4) return std::nullopt;
  const std::uint64_t w = load_uint(bytes, 0, 4, order);
  // Primary opcode 1 is the prefix of an 8-byte instruction (Power ISA 3.1, 1.6).
  if (bits(w, 26, 6) != 1) return Decoded{4, ppc_branch(w)};
  if (bytes.size() < 8) return std::nullopt;
  return Decoded{8, {}};
}

std::optional<Decoded> decode_any(ByteView bytes, VirtAddr address, const ElfHeader& header,
                                  bool thumb) {
  const std::endian order = code_order(header);
  if (bytes.size() < 2) return std::nullopt;
  switch (header.machine) {
    case EM_AARCH64:
      if (bytes.size() < 4) return std::nullopt;
      return Decoded{4, aarch64_branch(load_uint(bytes, 0, 4, order))};
    case EM_ARM:
      if (thumb) return decode_thumb(bytes, address, order);
      if (bytes.size() < 4) return std::nullopt;
      return Decoded{4, arm_branch(load_uint(bytes, 0, 4, order))};
    case EM_PPC64:
      return decode_ppc(bytes, order);
    case EM_S390:
      return decode_s390(bytes);
    case EM_RISCV:
      return decode_riscv(bytes, header.is64);
    default:
      return std::nullopt;
  }
}

}  // namespace

bool has_decode_rules(std::uint16_t machine) {
  return machine == EM_AARCH64 || machine == EM_ARM || machine == EM_PPC64 || machine == EM_S390 ||
         machine == EM_RISCV;
}

std::optional<Instruction> decode_by_rules(ByteView bytes, VirtAddr address,
                                           const ElfHeader& header, bool thumb) {
  const auto decoded = decode_any(bytes, address, header, thumb);
  if (!decoded) return std::nullopt;
  Instruction instruction{address, Size{decoded->size}, decoded->branch.flow, {}};
  if (decoded->branch.offset) {
    std::uint64_t target = address.value + *decoded->branch.offset;
    if (!header.is64) target &= 0xffffffffU;
    instruction.target = VirtAddr{target};
  }
  return instruction;
}

}  // namespace reprobe
