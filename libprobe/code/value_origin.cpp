#include "libprobe/code/value_origin.hpp"

#include <algorithm>
#include <unordered_set>

namespace reprobe {
namespace {

// Steps that all questions about one piece may take together: several times through the whole of
// it, so that time stays linear in its size.
constexpr std::size_t kStepsPerInstruction = 64, kFewestSteps = 20000;
// CPython's loop at -Og ends each of its 200 instructions with a load before one shared jump.
constexpr std::size_t kMostOrigins = 1024;

// A register whose value before the instruction `at` is looked for. `narrow`: only its low 32 bits
// are used.
struct Wanted {
  std::size_t at{};
  unsigned reg{};
  bool narrow{};
};

using OriginKind = ValueOrigin::Kind;

// What an instruction that writes the wanted register does to it: an origin, or other registers to
// look for.
struct Definition {
  std::optional<ValueOrigin> origin;
  std::optional<Wanted> copy;
  bool kept{};  // the old value may stay too (cmov)
};

Definition origin(OriginKind kind, std::size_t at, std::optional<VirtAddr> address = {}) {
  return {ValueOrigin{kind, address.value_or(VirtAddr{}), at}, {}, false};
}

Definition unknown(std::size_t at) { return origin(OriginKind::unknown, at); }

// A load of the whole register, or of 32 bits.
Definition load(const CodeInstruction& code, std::size_t at, bool whole, bool narrow) {
  if (code.encoding.operand16) return unknown(at);
  if (!whole) return origin(OriginKind::load32, at);
  return narrow ? unknown(at) : origin(OriginKind::pointer, at);
}

Definition from_operand(const CodeInstruction& code, const Wanted& wanted, bool sign_extends) {
  const X86Encoding& e = code.encoding;
  const bool whole = e.rex_w && !sign_extends;
  if (e.is_memory()) return load(code, wanted.at, whole, wanted.narrow);
  if (e.operand16) return unknown(wanted.at);
  return {{}, Wanted{wanted.at, e.rm, wanted.narrow || !whole}, false};
}

Definition lea(const CodeInstruction& code, const Wanted& wanted) {
  const X86Encoding& e = code.encoding;
  if (wanted.narrow || !e.rex_w) return unknown(wanted.at);
  if (code.rip_target) return origin(OriginKind::constant, wanted.at, code.rip_target);
  const bool sum = e.base && e.index && e.scale == 1 && code.memory->displacement == 0;
  return origin(sum ? OriginKind::sum : OriginKind::unknown, wanted.at);
}

Definition constant(const CodeInstruction& code, const Wanted& wanted) {
  if (wanted.narrow || !code.immediate || code.encoding.operand16) return unknown(wanted.at);
  return origin(OriginKind::constant, wanted.at,
                VirtAddr{static_cast<std::uint64_t>(*code.immediate)});
}

Definition define_one_byte(const CodeInstruction& code, const Wanted& wanted) {
  const X86Encoding& e = code.encoding;
  const bool in_reg = e.has_modrm() && e.reg == wanted.reg;
  const bool in_rm = e.has_modrm() && e.mod == 3 && e.rm == wanted.reg;
  const bool wide_sum = e.rex_w && e.mod == 3 && !wanted.narrow;
  switch (e.opcode) {
    case 0x8b:  // mov r, r/m
      if (in_reg) return from_operand(code, wanted, false);
      break;
    case 0x89:  // mov r/m, r
      if (in_rm && !e.operand16)
        return {{}, Wanted{wanted.at, e.reg, wanted.narrow || !e.rex_w}, false};
      break;
    case 0x63:  // movsxd
      if (in_reg && e.rex_w) return from_operand(code, wanted, true);
      break;
    case 0x98:  // cdqe
      if (e.rex_w && wanted.reg == kRax) return {{}, Wanted{wanted.at, kRax, true}, false};
      break;
    case 0x8d:
      if (in_reg) return lea(code, wanted);
      break;
    case 0x03:
      if (in_reg && wide_sum) return origin(OriginKind::sum, wanted.at);
      break;
    case 0x01:
      if (in_rm && wide_sum) return origin(OriginKind::sum, wanted.at);
      break;
    case 0xc7:
      if (in_rm) return constant(code, wanted);
      break;
    default:
      if (e.opcode_register != wanted.reg) break;
      if (e.opcode >= 0x58 && e.opcode <= 0x5f)  // pop
        return e.operand16 ? unknown(wanted.at) : load(code, wanted.at, true, wanted.narrow);
      if (e.opcode >= 0xb8 && e.opcode <= 0xbf) return constant(code, wanted);
  }
  return unknown(wanted.at);
}

// `code`, the instruction `wanted.at`, writes the wanted register.
Definition define(const CodeInstruction& code, const Wanted& wanted) {
  const X86Encoding& e = code.encoding;
  if (e.map == OpcodeMap::one_byte) return define_one_byte(code, wanted);
  const bool cmov = e.map == OpcodeMap::map_0f && e.opcode >= 0x40 && e.opcode <= 0x4f;
  if (!cmov || e.reg != wanted.reg) return unknown(wanted.at);
  Definition definition = from_operand(code, wanted, false);
  definition.kept = true;
  return definition;
}

bool calls(const CodeInstruction& code) {
  return code.kind == InstructionKind::call || code.kind == InstructionKind::indirect_call;
}

class OriginWalk {
 public:
  void want(const Wanted& wanted) {
    const std::uint64_t key =
        std::uint64_t{wanted.at} << 8 | wanted.reg << 1 | (wanted.narrow ? 1U : 0U);
    if (seen_.insert(key).second) open_.push_back(wanted);
  }
  void found(const ValueOrigin& origin) {
    const auto same = [&](const ValueOrigin& o) {
      return o.kind == origin.kind && o.address == origin.address && o.at == origin.at;
    };
    if (std::ranges::none_of(origins_, same)) origins_.push_back(origin);
  }
  [[nodiscard]] std::optional<Wanted> next() {
    if (open_.empty()) return std::nullopt;
    const Wanted wanted = open_.back();
    open_.pop_back();
    return wanted;
  }
  [[nodiscard]] std::vector<ValueOrigin>& origins() { return origins_; }

 private:
  std::vector<Wanted> open_;
  std::unordered_set<std::uint64_t> seen_;
  std::vector<ValueOrigin> origins_;
};

}  // namespace

OriginFinder::OriginFinder(const CodePiece& piece)
    : piece_(&piece), steps_left_(kFewestSteps + kStepsPerInstruction * piece.code.size()) {
  for (std::size_t i = 0; i < piece.code.size(); ++i) {
    const CodeInstruction& code = piece.code[i];
    if (code.kind == InstructionKind::indirect_jump) indirect_.push_back(i);
    if (code.target && !calls(code)) branches_.push_back({*code.target, i});
  }
  for (const StackJump& jump : piece.stack_jumps) indirect_.push_back(jump.at);
  std::ranges::sort(branches_, {}, &Branch::target);
}

std::optional<std::vector<std::size_t>> OriginFinder::predecessors(std::size_t at,
                                                                   std::size_t most) const {
  const auto& code = piece_->code;
  const VirtAddr address = code[at].address;
  const std::span direct(std::ranges::lower_bound(branches_, address, {}, &Branch::target),
                         std::ranges::upper_bound(branches_, address, {}, &Branch::target));
  const auto& points = piece_->arrivals;
  const std::span arrivals(std::ranges::lower_bound(points, address, {}, &ArrivalPoint::address),
                           std::ranges::upper_bound(points, address, {}, &ArrivalPoint::address));
  const bool unknown = std::any_of(arrivals.begin(), arrivals.end(),
                                   [](const ArrivalPoint& a) { return a.how == Arrival::unknown; });
  const bool falls_through = at > 0 && !code[at - 1].ends_block();
  const std::size_t indirect = arrivals.empty() ? 0 : indirect_.size();
  if (unknown || direct.size() + indirect + (falls_through ? 1 : 0) > most) return std::nullopt;
  std::vector<std::size_t> from;
  if (falls_through) from.push_back(at - 1);
  for (const Branch& branch : direct) from.push_back(branch.from);
  if (indirect != 0) from.insert(from.end(), indirect_.begin(), indirect_.end());
  return from;
}

std::vector<ValueOrigin> OriginFinder::origins(std::size_t at, unsigned reg) {
  std::vector<ValueOrigin> too_many{{OriginKind::unknown, {}, at}};
  OriginWalk walk;
  walk.want({at, reg, false});
  while (const auto wanted = walk.next()) {
    if (wanted->at == 0) {
      const bool argument = piece_->entered_by_calls && !wanted->narrow;
      walk.found({argument ? OriginKind::pointer : OriginKind::unknown, {}, 0});
    }
    const auto from = predecessors(wanted->at, steps_left_);
    if (!from) {
      walk.found({OriginKind::unknown, {}, wanted->at});
      continue;
    }
    if (steps_left_ <= from->size()) return too_many;
    steps_left_ -= from->size() + 1;
    for (const std::size_t p : *from) {
      const CodeInstruction& code = piece_->code[p];
      const Wanted before{p, wanted->reg, wanted->narrow};
      if (calls(code) && (wanted->reg == kRax || wanted->reg == kRdx)) {
        walk.found({wanted->narrow ? OriginKind::unknown : OriginKind::pointer, {}, p});
      } else if (code.opaque) {
        walk.found({OriginKind::unknown, {}, p});
      } else if ((code.writes & (1U << wanted->reg)) == 0) {
        walk.want(before);
      } else {
        const Definition definition = define(code, before);
        if (definition.origin) walk.found(*definition.origin);
        if (definition.copy) walk.want(*definition.copy);
        if (definition.kept) walk.want(before);
      }
    }
    if (walk.origins().size() > kMostOrigins) return too_many;
  }
  return std::move(walk.origins());
}

}  // namespace reprobe
