// The parts of an x86-64 instruction's encoding: prefixes, opcode, ModRM operand.
// Format: Intel SDM volume 2, chapter 2 and appendix A; AMD APM volume 3 for XOP.
#pragma once

#include <cstdint>
#include <optional>

#include "libprobe/elf/bytes.hpp"

namespace reprobe {

enum class OpcodeMap : std::uint8_t { one_byte, map_0f, map_0f38, map_0f3a, vector };

struct X86Encoding {
  OpcodeMap map{};
  std::uint8_t opcode{};
  unsigned opcode_at{};  // offset of the opcode byte in the instruction
  // Prefixes.
  bool rex_w{}, operand16{}, address32{}, lock{}, repne{}, rep{}, segment{};
  // The ModRM byte; `modrm_at` is 0 where the opcode has none.
  unsigned modrm_at{};
  unsigned mod{};
  unsigned reg{};              // 0-15, REX.R or its like applied (an opcode extension is reg & 7)
  unsigned rm{};               // 0-15, REX.B applied; a register where mod is 3
  unsigned opcode_register{};  // 0-15: the opcode's low three bits with REX.B (push, pop, mov imm)
  // The memory operand, where mod is not 3.
  bool rip_relative{};
  std::optional<unsigned> base, index;
  unsigned scale{1};
  unsigned displacement_at{}, displacement_size{};

  [[nodiscard]] bool has_modrm() const { return modrm_at != 0; }
  [[nodiscard]] bool is_memory() const { return has_modrm() && mod != 3; }
};

// Of the instruction that fills `bytes`, 1 to 15. Nothing where it is cut off before its operand's
// end.
[[nodiscard]] std::optional<X86Encoding> x86_encoding(ByteView bytes);

}  // namespace reprobe
