#include "libprobe/verify/site_checks.hpp"

#include "libprobe/code/x86_length.hpp"

namespace reprobe {
namespace {

bool is_opcode(const CodeInstruction& code, OpcodeMap map, unsigned opcode) {
  const X86Encoding& e = code.encoding;
  const bool plain = !e.lock && !e.rep && !e.repne && !e.segment && !e.address32;
  return plain && e.map == map && e.opcode == opcode;
}

// A 16-bit operation between registers, or of a register and an immediate.
bool is_word_of(const CodeInstruction& code, unsigned opcode, unsigned rm) {
  const X86Encoding& e = code.encoding;
  return is_opcode(code, OpcodeMap::one_byte, opcode) && e.operand16 && !e.rex_w && e.mod == 3 &&
         e.rm == rm;
}

// The byte that the use is to look at: at the site, or where the same register points.
bool is_site_operand(const CodeInstruction& code, const GuardUse& use, VirtAddr site) {
  if (!code.memory || code.memory->size != 1 || code.memory->index || code.memory->segment)
    return false;
  if (use.through_register)
    return code.memory->base == use.code.memory->base && code.memory->displacement == 0;
  if (code.memory->base) return false;
  return code.rip_target.value_or(
             VirtAddr{static_cast<std::uint64_t>(code.memory->displacement)}) == site;
}

bool puts_address(const CodeInstruction& code, const GuardUse& use, VirtAddr site) {
  const X86Encoding& e = code.encoding;
  const X86Encoding& old = use.code.encoding;
  if (old.is_memory()) {  // lea, or a load from the GOT
    return is_opcode(code, OpcodeMap::one_byte, 0x8d) && e.rex_w && !e.operand16 &&
           e.reg == old.reg && code.rip_target == site;
  }
  return is_opcode(code, OpcodeMap::one_byte, old.opcode) && e.rex_w == old.rex_w &&
         e.mod == old.mod && e.rm == old.rm && e.reg == old.reg &&
         e.opcode_register == old.opcode_register && code.size == use.code.size &&
         code.immediate == static_cast<std::int64_t>(site.value);
}

}  // namespace

std::optional<CodeInstruction> SiteChecks::decode(VirtAddr at) const {
  auto code = decoder_.decode_operands(after_.bytes_at(at, Size{kLongestX86}), at);
  if (!code || code->opaque) return std::nullopt;
  return code;
}

// cmpb $unarmed,operand
bool SiteChecks::compares(const CodeInstruction& code, const GuardUse& use,
                          const GuardCounter& counter) const {
  const bool compare = is_opcode(code, OpcodeMap::one_byte, 0x80) && (code.encoding.reg & 7) == 7;
  // Capstone sign-extends it.
  return compare && is_site_operand(code, use, counter.site) && code.immediate &&
         static_cast<std::uint8_t>(*code.immediate) == counter.unarmed;
}

// cmpb $unarmed,operand; stc; je 1f; clc; 1:
std::optional<Size> SiteChecks::below_size(const GuardUse& use, const GuardCounter& counter,
                                           const CodeInstruction& first) const {
  const auto set = decode(first.end());
  const auto branch = set ? decode(set->end()) : std::nullopt;
  const auto clear = branch ? decode(branch->end()) : std::nullopt;
  const bool good = clear && compares(first, use, counter) &&
                    is_opcode(*set, OpcodeMap::one_byte, 0xf9) &&
                    is_opcode(*branch, OpcodeMap::one_byte, 0x74) &&
                    branch->target == clear->end() && is_opcode(*clear, OpcodeMap::one_byte, 0xf8);
  if (!good) return std::nullopt;
  return Size{clear->end().value - first.address.value};
}

// movzb operand,%r; leaw -unarmed(%r),%r
std::optional<Size> SiteChecks::load_size(const GuardUse& use, const GuardCounter& counter,
                                          const CodeInstruction& first) const {
  const X86Encoding& old = use.code.encoding;
  const X86Encoding& e = first.encoding;
  const auto second = decode(first.end());
  if (!second || !is_opcode(first, OpcodeMap::map_0f, 0xb6) ||
      !is_site_operand(first, use, counter.site)) {
    return std::nullopt;
  }
  const bool same_width = e.rex_w == old.rex_w && e.operand16 == old.operand16;
  const X86Encoding& lea = second->encoding;
  const bool lowers = is_opcode(*second, OpcodeMap::one_byte, 0x8d) && lea.operand16 &&
                      !lea.rex_w && lea.reg == old.reg && second->memory &&
                      second->memory->base == old.reg && !second->memory->index &&
                      second->memory->displacement == -std::int64_t{counter.unarmed};
  if (!same_width || e.reg != old.reg || !lowers) return std::nullopt;
  return Size{first.size.value + second->size.value};
}

// cmpb $unarmed,operand; je 1f; orw $1,%r; 1: testw %r,%r
std::optional<Size> SiteChecks::merge_size(const GuardUse& use, const GuardCounter& counter,
                                           const CodeInstruction& first) const {
  const unsigned reg = use.code.encoding.reg;
  const auto branch = decode(first.end());
  const auto merge = branch ? decode(branch->end()) : std::nullopt;
  const auto test = merge ? decode(merge->end()) : std::nullopt;
  if (!test || !compares(first, use, counter)) return std::nullopt;
  const bool good = is_opcode(*branch, OpcodeMap::one_byte, 0x74) &&
                    branch->target == test->address && is_word_of(*merge, 0x83, reg) &&
                    (merge->encoding.reg & 7) == 1 && merge->immediate == 1 &&
                    is_word_of(*test, 0x85, reg) && test->encoding.reg == reg;
  if (!good) return std::nullopt;
  return Size{test->end().value - first.address.value};
}

std::optional<Size> SiteChecks::size(const GuardUse& use, const GuardCounter& counter,
                                     VirtAddr now) const {
  const auto first = decode(now);
  if (!first) return std::nullopt;
  switch (use.form) {
    case GuardForm::compare:
      return compares(*first, use, counter) ? std::optional(first->size) : std::nullopt;
    case GuardForm::below:
      return below_size(use, counter, *first);
    case GuardForm::load:
      return load_size(use, counter, *first);
    case GuardForm::merge:
      return merge_size(use, counter, *first);
    case GuardForm::address:
      return puts_address(*first, use, counter.site) ? std::optional(first->size) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace reprobe
