// Decodes one instruction at a time. x86 is Capstone's work; the other machines' lengths and
// branches follow from a few bits (decode_rules.hpp), and Capstone only names the instruction.
// All that includes Capstone's headers is decoder.cpp and x86_capstone.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "libprobe/code/instruction.hpp"
#include "libprobe/code/x86_operands.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"

namespace reprobe {

class Decoder {
 public:
  // Nothing for machines whose instructions are not known. `thumb`: EM_ARM only.
  [[nodiscard]] static std::optional<Decoder> open(const ElfHeader& header, bool thumb);

  // The instruction that `bytes` starts with; `address` is its address. Nothing where the bytes
  // are no instruction or are too few for it. A relative branch's target wraps at the word size.
  [[nodiscard]] std::optional<Instruction> decode(ByteView bytes, VirtAddr address) const;

  // The same with all that moving the instruction needs to know. x86-64 only; nothing elsewhere.
  [[nodiscard]] std::optional<CodeInstruction> decode_operands(ByteView bytes,
                                                               VirtAddr address) const;

  // "mov", "bl", ...; "" where Capstone does not know it.
  [[nodiscard]] std::string mnemonic(ByteView bytes, VirtAddr address) const;

 private:
  struct Capstone;
  struct CloseCapstone {
    void operator()(Capstone* capstone) const;
  };

  Decoder(const ElfHeader& header, bool thumb);

  [[nodiscard]] std::optional<Instruction> decode_x86(ByteView bytes, VirtAddr address) const;

  ElfHeader header_;
  bool thumb_;
  std::unique_ptr<Capstone, CloseCapstone> capstone_;  // null where Capstone lacks the machine
};

}  // namespace reprobe
