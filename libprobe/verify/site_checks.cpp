#include "libprobe/verify/site_checks.hpp"

#include <algorithm>
#include <vector>

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

// cmpb $unarmed,m8
bool is_comparison(const CodeInstruction& code, std::uint8_t unarmed) {
  // Capstone sign-extends the immediate.
  return is_opcode(code, OpcodeMap::one_byte, 0x80) && (code.encoding.reg & 7) == 7 &&
         code.memory && code.immediate && static_cast<std::uint8_t>(*code.immediate) == unarmed;
}

bool has_rex(const CodeInstruction& code) {
  // The byte before the 0f of a two-byte opcode, if there is one that is no other prefix: REX is
  // the last of them.
  const unsigned prefixes = code.encoding.opcode_at - 1U - (code.encoding.operand16 ? 1U : 0U);
  return prefixes == 1;
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
  return is_comparison(code, counter.unarmed) && is_site_operand(code, use, counter.site);
}

// The comparison, and behind it, where the check looks at all sites, `jne 1f; cmpb $unarmed,other`
// for each other one, in order, and 1: what is given.
std::optional<VirtAddr> SiteChecks::comparisons(const GuardUse& use, const GuardCounter& counter,
                                                const CodeInstruction& first) const {
  if (!compares(first, use, counter)) return std::nullopt;
  const auto next = decode(first.end());
  const auto second = next ? decode(next->end()) : std::nullopt;
  const bool several = second && !counter.others.empty() &&
                       is_opcode(*next, OpcodeMap::one_byte, 0x75) &&
                       is_comparison(*second, counter.unarmed) &&
                       second->rip_target == counter.others.front();
  if (!several) return first.end();
  std::vector<VirtAddr> branches;
  VirtAddr at = first.end();
  for (const VirtAddr other : counter.others) {
    const auto branch = decode(at);
    const auto compare = branch ? decode(branch->end()) : std::nullopt;
    if (!compare || !is_opcode(*branch, OpcodeMap::one_byte, 0x75) || !branch->target ||
        !is_comparison(*compare, counter.unarmed) || compare->rip_target != other ||
        compare->memory->size != 1)
      return std::nullopt;
    branches.push_back(*branch->target);
    at = compare->end();
  }
  if (std::ranges::any_of(branches, [&](VirtAddr to) { return to != at; })) return std::nullopt;
  return at;
}

// cmpb $unarmed,operand, in place or with further sites
std::optional<Size> SiteChecks::compare_size(const GuardUse& use, const GuardCounter& counter,
                                             const CodeInstruction& first) const {
  const auto end = comparisons(use, counter, first);
  return end ? std::optional(Size{end->value - first.address.value}) : std::nullopt;
}

// cmpb $unarmed,operand; jne 1f; cmpq $-1,%rsp; jmp 2f; 1: cmpb %al,%al; 2:
std::optional<Size> SiteChecks::below_or_equal_size(VirtAddr begin, VirtAddr compared) const {
  const auto branch = decode(compared);
  const auto differs = branch ? decode(branch->end()) : std::nullopt;
  const auto jump = differs ? decode(differs->end()) : std::nullopt;
  const auto equals = jump ? decode(jump->end()) : std::nullopt;
  const bool good =
      equals && is_opcode(*branch, OpcodeMap::one_byte, 0x75) &&
      branch->target == equals->address && is_opcode(*differs, OpcodeMap::one_byte, 0x83) &&
      (differs->encoding.reg & 7) == 7 && differs->encoding.rex_w && differs->encoding.mod == 3 &&
      differs->encoding.rm == kRsp && differs->immediate == -1 &&
      is_opcode(*jump, OpcodeMap::one_byte, 0xeb) && jump->target == equals->end() &&
      is_opcode(*equals, OpcodeMap::one_byte, 0x38) && equals->encoding.mod == 3 &&
      equals->encoding.rm == equals->encoding.reg;
  return good ? std::optional(Size{equals->end().value - begin.value}) : std::nullopt;
}

// cmpb $unarmed,operand; stc; je 1f; clc; 1:
std::optional<Size> SiteChecks::below_size(const GuardUse& use, const GuardCounter& counter,
                                           const CodeInstruction& first) const {
  const auto compared = comparisons(use, counter, first);
  if (!compared) return std::nullopt;
  if (use.flags_live) return below_or_equal_size(first.address, *compared);
  const auto set = decode(*compared);
  const auto branch = set ? decode(set->end()) : std::nullopt;
  const auto clear = branch ? decode(branch->end()) : std::nullopt;
  const bool good = clear && is_opcode(*set, OpcodeMap::one_byte, 0xf9) &&
                    is_opcode(*branch, OpcodeMap::one_byte, 0x74) &&
                    branch->target == clear->end() && is_opcode(*clear, OpcodeMap::one_byte, 0xf8);
  if (!good) return std::nullopt;
  return Size{clear->end().value - first.address.value};
}

// setne %r8; movzbl %r8,%r32, or movzbw %r8,%r16
bool SiteChecks::sets_register(const CodeInstruction& set, const CodeInstruction& extend,
                               const CodeInstruction& old) {
  const unsigned reg = old.encoding.reg;
  const bool word = old.encoding.map == OpcodeMap::one_byte;
  const X86Encoding& e = extend.encoding;
  const auto is_low_byte = [&](const CodeInstruction& code) {
    // Without a REX byte 4-7 are %ah and its like.
    return code.encoding.mod == 3 && code.encoding.rm == reg &&
           (reg < 4 || reg >= 8 || has_rex(code));
  };
  return is_opcode(set, OpcodeMap::map_0f, 0x95) && is_low_byte(set) &&
         is_opcode(extend, OpcodeMap::map_0f, 0xb6) && is_low_byte(extend) && e.reg == reg &&
         e.operand16 == word && !e.rex_w;
}

// cmpb $unarmed,operand; setne %r8; movzbl %r8,%r
std::optional<Size> SiteChecks::load_size(const GuardUse& use, const GuardCounter& counter,
                                          const CodeInstruction& first) const {
  if (use.flags_live) return load_size_without_flags(use, counter, first);
  const auto compared = comparisons(use, counter, first);
  const auto set = compared ? decode(*compared) : std::nullopt;
  const auto extend = set ? decode(set->end()) : std::nullopt;
  if (!extend || !sets_register(*set, *extend, use.code)) return std::nullopt;
  return Size{extend->end().value - first.address.value};
}

// movzbl operand,%r32; xchg %rcx,%r64; lea -unarmed(%rcx),%ecx; jrcxz 1f; mov $1,%ecx;
// 1: xchg %rcx,%r64. For %rcx without the exchanges.
std::optional<Size> SiteChecks::load_size_without_flags(const GuardUse& use,
                                                        const GuardCounter& counter,
                                                        const CodeInstruction& first) const {
  const unsigned reg = use.code.encoding.reg;
  const bool loads = is_opcode(first, OpcodeMap::map_0f, 0xb6) && !first.encoding.operand16 &&
                     first.encoding.reg == reg && is_site_operand(first, use, counter.site);
  VirtAddr at = first.end();
  const auto next = [&] {
    auto code = decode(at);
    if (code) at = code->end();
    return code;
  };
  const auto exchanges = [&] {
    if (reg == kRcx) return true;
    const auto code = next();
    return code && is_opcode(*code, OpcodeMap::one_byte, 0x87) && code->encoding.rex_w &&
           code->encoding.mod == 3 && code->encoding.reg == kRcx && code->encoding.rm == reg;
  };
  if (!loads || !exchanges()) return std::nullopt;
  const auto lower = next(), branch = next(), one = next();
  const bool good =
      one && is_opcode(*lower, OpcodeMap::one_byte, 0x8d) && !lower->encoding.rex_w &&
      !lower->encoding.operand16 && lower->encoding.reg == kRcx && lower->memory &&
      lower->memory->base == kRcx && !lower->memory->index &&
      lower->memory->displacement == -std::int64_t{counter.unarmed} &&
      is_opcode(*branch, OpcodeMap::one_byte, 0xe3) && branch->target == one->end() &&
      is_opcode(*one, OpcodeMap::one_byte, 0xb9) && one->encoding.opcode_register == kRcx &&
      !one->encoding.operand16 && one->immediate == 1;
  if (!good || !exchanges()) return std::nullopt;
  return Size{at.value - first.address.value};
}

// cmpb $unarmed,operand; je 1f; orw $1,%r; 1: testw %r,%r
std::optional<Size> SiteChecks::merge_size(const GuardUse& use, const GuardCounter& counter,
                                           const CodeInstruction& first) const {
  const unsigned reg = use.code.encoding.reg;
  const auto compared = comparisons(use, counter, first);
  const auto branch = compared ? decode(*compared) : std::nullopt;
  const auto merge = branch ? decode(branch->end()) : std::nullopt;
  const auto test = merge ? decode(merge->end()) : std::nullopt;
  if (!test) return std::nullopt;
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
    case GuardForm::bit:
      return compare_size(use, counter, *first);
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
