#include "libprobe/verify/site_checks.hpp"

namespace reprobe {
namespace {

// The byte that the use is to look at: at the site, or where the same register points.
bool is_site_operand(const X86Reading& code, const CounterUse& use, VirtAddr site) {
  if (!code.memory || code.memory->bytes != 1 || code.memory->index || code.memory->segment ||
      code.memory->vector_index || code.memory->address32) {
    return false;
  }
  if (use.through_register)
    return code.memory->base == use.code.memory->base && code.memory->displacement == 0;
  return code.memory->address == site;
}

// cmpb $unarmed,operand
bool compares(const X86Reading& code, const CounterUse& use, const CheckedCounter& counter) {
  const auto immediate = code.immediate();
  return code.operation == Operation::cmp && !code.prefixed &&
         code.operands[0].kind == ReadOperand::Kind::memory &&
         is_site_operand(code, use, counter.site) && immediate &&
         static_cast<std::uint8_t>(*immediate) == counter.unarmed;
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
         (static_cast<std::uint64_t>(*immediate) & mask) == site.value;
}

}  // namespace

// cmpb $unarmed,operand; stc; je 1f; clc; 1:
std::optional<Size> SiteChecks::below_size(const CounterUse& use, const CheckedCounter& counter,
                                           const X86Reading& first) const {
  const auto set = read(first.end());
  const auto branch = set ? read(set->end()) : std::nullopt;
  const auto clear = branch ? read(branch->end()) : std::nullopt;
  const bool good = clear && compares(first, use, counter) && set->operation == Operation::stc &&
                    branch->operation == Operation::je && branch->target == clear->end() &&
                    clear->operation == Operation::clc;
  if (!good) return std::nullopt;
  return Size{clear->end().value - first.address.value};
}

// movzb operand,%r; leaw -unarmed(%r),%r
std::optional<Size> SiteChecks::load_size(const CounterUse& use, const CheckedCounter& counter,
                                          const X86Reading& first) const {
  const auto reg = use.code.register_at(0);
  const auto lea = read(first.end());
  const bool loads = reg && first.operation == Operation::movzx && !first.prefixed &&
                     first.register_at(0) == reg &&
                     first.operands[0].bits == use.code.operands[0].bits &&
                     is_site_operand(first, use, counter.site);
  const bool lowers = lea && lea->operation == Operation::lea && !lea->prefixed &&
                      lea->register_at(0) == reg && lea->operands[0].bits == 16 &&
                      lea->memory->base == reg && !lea->memory->index &&
                      lea->memory->displacement == -std::int64_t{counter.unarmed};
  if (!loads || !lowers) return std::nullopt;
  return Size{first.size.value + lea->size.value};
}

// cmpb $unarmed,operand; je 1f; orw $1,%r; 1: testw %r,%r
std::optional<Size> SiteChecks::merge_size(const CounterUse& use, const CheckedCounter& counter,
                                           const X86Reading& first) const {
  const auto reg = use.code.register_at(0);
  const auto branch = read(first.end());
  const auto merge = branch ? read(branch->end()) : std::nullopt;
  const auto test = merge ? read(merge->end()) : std::nullopt;
  if (!reg || !test || !compares(first, use, counter)) return std::nullopt;
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
    case CheckKind::compare:
      return compares(*first, use, counter) ? std::optional(first->size) : std::nullopt;
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
