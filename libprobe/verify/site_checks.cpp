#include "libprobe/verify/site_checks.hpp"

#include <algorithm>
#include <vector>

namespace reprobe {
namespace {

// The byte that the use is to look at: at the site, or where the same register points.
bool is_site_operand(const X86Reading& code, const CounterUse& use, VirtAddr site) {
  if (!code.memory || code.memory->bytes != 1 || code.memory->segment ||
      code.memory->vector_index || code.memory->address32) {
    return false;
  }
  if (use.through_register) {
    const ReadMemory& old = *use.code.memory;
    return code.memory->base == old.base && code.memory->index == old.index &&
           code.memory->scale == old.scale && code.memory->displacement == 0;
  }
  return code.memory->address == site;
}

// cmpb $unarmed,m8
bool is_comparison(const X86Reading& code, std::uint8_t unarmed) {
  const auto immediate = code.immediate();
  return code.operation == Operation::cmp && !code.prefixed && code.memory &&
         code.memory->bytes == 1 && code.operands[0].kind == ReadOperand::Kind::memory &&
         immediate && static_cast<std::uint8_t>(*immediate) == unarmed;
}

bool compares(const X86Reading& code, const CounterUse& use, const CheckedCounter& counter) {
  return is_comparison(code, counter.unarmed) && is_site_operand(code, use, counter.site);
}

// An operation of 16 bits on the register.
bool is_word_of(const X86Reading& code, Operation operation, unsigned reg) {
  return code.operation == operation && !code.prefixed && code.register_at(0) == reg &&
         code.operands[0].bits == 16 && !code.memory;
}

// The register of the original gets the site's address.
bool puts_address(const X86Reading& code, const CounterUse& use, VirtAddr site) {
  const X86Reading& old = use.code;
  const auto reg = old.register_at(0);
  if (!reg || code.register_at(0) != reg || code.operands[0].bits != old.operands[0].bits ||
      code.prefixed) {
    return false;
  }
  if (old.memory)  // lea, or a load from the GOT
    return code.operation == Operation::lea && code.operands[0].bits == 64 && code.memory &&
           code.memory->address == site && code.rip_field.has_value();
  const auto immediate = code.immediate();
  const std::uint64_t mask = code.operands[0].bits == 64 ? ~std::uint64_t{0} : 0xffffffffU;
  return code.operation == Operation::mov && code.size == old.size && immediate &&
         ((static_cast<std::uint64_t>(*immediate) + use.got.value_or(VirtAddr{}).value) & mask) ==
             site.value;
}

// setne %r8; movzbl %r8,%r32, or movzbw %r8,%r16
bool sets_register(const X86Reading& set, const X86Reading& extend, const X86Reading& old) {
  const auto reg = old.register_at(0);
  const unsigned bits = old.operands[0].bits == 16 ? 16 : 32;
  return reg && set.operation == Operation::setne && !set.prefixed && set.register_at(0) == reg &&
         extend.operation == Operation::movzx && !extend.prefixed &&
         extend.register_at(0) == reg && extend.operands[0].bits == bits &&
         extend.register_at(1) == reg && extend.operands[1].bits == 8;
}

}  // namespace

// The comparison, and behind it, where the check looks at all sites, `jne 1f; cmpb $unarmed,other`
// for each other one, in order, and 1: what is given.
std::optional<VirtAddr> SiteChecks::comparisons(const CounterUse& use,
                                                const CheckedCounter& counter,
                                                const X86Reading& first) const {
  if (!compares(first, use, counter)) return std::nullopt;
  const auto compares_other = [&](const std::optional<X86Reading>& code, VirtAddr other) {
    return code && is_comparison(*code, counter.unarmed) && code->memory->address == other;
  };
  std::vector<VirtAddr> branches;
  VirtAddr at = first.end();
  for (const VirtAddr other : counter.others) {
    const auto branch = read(at);
    const auto compare = branch ? read(branch->end()) : std::nullopt;
    const bool looks = branch && branch->operation == Operation::jne && branch->target &&
                       compares_other(compare, other);
    // It looks at the first alone.
    if (!looks && branches.empty()) return first.end();
    if (!looks) return std::nullopt;
    branches.push_back(*branch->target);
    at = compare->end();
  }
  if (std::ranges::any_of(branches, [&](VirtAddr to) { return to != at; })) return std::nullopt;
  return at;
}

// cmpb $unarmed,operand; jne 1f; cmpq $-1,%rsp; jmp 2f; 1: cmpb %al,%al; 2: (%rsp is never -1)
std::optional<Size> SiteChecks::below_or_equal_size(VirtAddr begin, VirtAddr compared) const {
  const auto branch = read(compared);
  const auto differs = branch ? read(branch->end()) : std::nullopt;
  const auto jump = differs ? read(differs->end()) : std::nullopt;
  const auto equals = jump ? read(jump->end()) : std::nullopt;
  const bool good =
      equals && branch->operation == Operation::jne && branch->target == equals->address &&
      differs->operation == Operation::cmp && differs->register_at(0) == kStackPointer &&
      differs->operands[0].bits == 64 && differs->immediate() == -1 &&
      jump->flow == ReadFlow::jump && jump->target == equals->end() &&
      equals->operation == Operation::cmp && equals->register_at(0) &&
      equals->register_at(0) == equals->register_at(1);
  return good ? std::optional(Size{equals->end().value - begin.value}) : std::nullopt;
}

// cmpb $unarmed,operand; stc; je 1f; clc; 1:
std::optional<Size> SiteChecks::below_size(const CounterUse& use, const CheckedCounter& counter,
                                           const X86Reading& first) const {
  const auto compared = comparisons(use, counter, first);
  if (!compared) return std::nullopt;
  if (use.flags_live) return below_or_equal_size(first.address, *compared);
  const auto set = read(*compared);
  const auto branch = set ? read(set->end()) : std::nullopt;
  const auto clear = branch ? read(branch->end()) : std::nullopt;
  const bool good = clear && set->operation == Operation::stc &&
                    branch->operation == Operation::je && branch->target == clear->end() &&
                    clear->operation == Operation::clc;
  if (!good) return std::nullopt;
  return Size{clear->end().value - first.address.value};
}

// cmpb $unarmed,operand; setne %r8; movzbl %r8,%r
std::optional<Size> SiteChecks::load_size(const CounterUse& use, const CheckedCounter& counter,
                                          const X86Reading& first) const {
  if (use.flags_live) return load_size_without_flags(use, counter, first);
  const auto compared = comparisons(use, counter, first);
  const auto set = compared ? read(*compared) : std::nullopt;
  const auto extend = set ? read(set->end()) : std::nullopt;
  if (!extend || !sets_register(*set, *extend, use.code)) return std::nullopt;
  return Size{extend->end().value - first.address.value};
}

// movzbl operand,%r32; xchg %rcx,%r64; lea -unarmed(%rcx),%ecx; jrcxz 1f; mov $1,%ecx;
// 1: xchg %rcx,%r64. For %rcx without the exchanges.
std::optional<Size> SiteChecks::load_size_without_flags(const CounterUse& use,
                                                        const CheckedCounter& counter,
                                                        const X86Reading& first) const {
  constexpr unsigned kCounting = 1;  // rcx
  const auto reg = use.code.register_at(0);
  const bool loads = reg && first.operation == Operation::movzx && !first.prefixed &&
                     first.register_at(0) == reg && first.operands[0].bits == 32 &&
                     is_site_operand(first, use, counter.site);
  VirtAddr at = first.end();
  const auto next = [&] {
    auto code = read(at);
    if (code) at = code->end();
    return code;
  };
  const auto exchanges = [&] {
    if (reg == kCounting) return true;
    const auto code = next();
    if (!code || code->operation != Operation::xchg || code->operands[0].bits != 64) return false;
    const auto a = code->register_at(0), b = code->register_at(1);
    return (a == reg && b == kCounting) || (a == kCounting && b == reg);
  };
  if (!loads || !exchanges()) return std::nullopt;
  const auto lower = next(), branch = next(), one = next();
  const bool good = one && lower->operation == Operation::lea && !lower->prefixed &&
                    lower->register_at(0) == kCounting && lower->operands[0].bits == 32 &&
                    lower->memory->base == kCounting && !lower->memory->index &&
                    lower->memory->displacement == -std::int64_t{counter.unarmed} &&
                    branch->operation == Operation::jrcxz && branch->target == one->end() &&
                    one->operation == Operation::mov && one->register_at(0) == kCounting &&
                    one->operands[0].bits == 32 && one->immediate() == 1;
  if (!good || !exchanges()) return std::nullopt;
  return Size{at.value - first.address.value};
}

// cmpb $unarmed,operand; je 1f; orw $1,%r; 1: testw %r,%r
std::optional<Size> SiteChecks::merge_size(const CounterUse& use, const CheckedCounter& counter,
                                           const X86Reading& first) const {
  const auto reg = use.code.register_at(0);
  const auto compared = comparisons(use, counter, first);
  const auto branch = compared ? read(*compared) : std::nullopt;
  const auto merge = branch ? read(branch->end()) : std::nullopt;
  const auto test = merge ? read(merge->end()) : std::nullopt;
  if (!reg || !test) return std::nullopt;
  const bool good = branch->operation == Operation::je && branch->target == test->address &&
                    is_word_of(*merge, Operation::bit_or, *reg) && merge->immediate() == 1 &&
                    is_word_of(*test, Operation::test, *reg) && test->register_at(1) == reg;
  if (!good) return std::nullopt;
  return Size{test->end().value - first.address.value};
}

std::optional<Size> SiteChecks::size(const CounterUse& use, const CheckedCounter& counter,
                                     VirtAddr now) const {
  const auto first = read(now);
  if (!first) return std::nullopt;
  switch (use.kind) {
    case CheckKind::compare: {
      const auto end = comparisons(use, counter, *first);
      return end ? std::optional(Size{end->value - now.value}) : std::nullopt;
    }
    case CheckKind::below:
      return below_size(use, counter, *first);
    case CheckKind::load:
      return load_size(use, counter, *first);
    case CheckKind::merge:
      return merge_size(use, counter, *first);
    case CheckKind::address:
      return puts_address(*first, use, counter.site) ? std::optional(first->size) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace reprobe
