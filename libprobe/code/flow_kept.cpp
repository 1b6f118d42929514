#include "libprobe/code/flow_kept.hpp"

#include <algorithm>
#include <iterator>

namespace reprobe {
namespace {

// Of an operand whose size is not known: xsave areas are longer, and nobody has one among code.
constexpr std::uint64_t kLongestOperand = 64;
// The shortest that a patcher writes, a call, and what two addresses of one thing lie apart.
constexpr std::uint64_t kShortestPatch = 5, kNear = 64;

// An address inside the function that stands in data, or that other code takes.
struct Named {
  VirtAddr target;
  VirtAddr source;
};

bool is_kept_filler(const CodeInstruction& code) {
  return code.kind == InstructionKind::nop ||
         (code.kind == InstructionKind::trap && code.size.value == 1);
}

bool subtracts(const CodeInstruction& code) {
  const X86Encoding& e = code.encoding;
  if (e.map != OpcodeMap::one_byte) return false;
  const bool group = (e.opcode == 0x81 || e.opcode == 0x83) && (e.reg & 7) == 5;
  return e.opcode == 0x29 || e.opcode == 0x2b || e.opcode == 0x2d || group;
}

class KeptFinder {
 public:
  explicit KeptFinder(const KeptQuestion& question) : q_(question) {}

  FoundKept run() {
    for (const CodeUse& use : q_.uses) {
      if (use.kind == CodeUseKind::patched || q_.range.contains(use.target)) take(use);
    }
    for (const Reference& reference : q_.references) take(reference);
    keep_named();
    keep_copied();
    return std::move(out_);
  }

 private:
  void keep(VirtAddr start, std::uint64_t size, KeptHow how, std::string_view why) {
    out_.kept.push_back({start, VirtAddr{start.value + size}, how, why});
  }

  [[nodiscard]] std::size_t index_at(VirtAddr address) const {
    const auto at = std::ranges::lower_bound(q_.code, address, {}, &CodeInstruction::address);
    return static_cast<std::size_t>(at - q_.code.begin());
  }

  void take(const CodeUse& use) {
    switch (use.kind) {
      case CodeUseKind::operand:
        return take_operand(use);
      case CodeUseKind::place:
        return keep(use.target, use.size.value, KeptHow::bytes, "a relocation of the loader");
      case CodeUseKind::patched:
        return keep(use.target, patched_size(use.target), KeptHow::bytes,
                    "code that is patched at run time");
      case CodeUseKind::distance:
        if (use.target != q_.range.start && !in_label_table(use.source))
          name(use.target, use.source);
        return;
    }
  }

  void take_operand(const CodeUse& use) {
    const CodeInstruction* holder = q_.holder_of(use.source);
    std::uint64_t size = kLongestOperand;
    if (holder != nullptr) {
      if (!is_operand(*holder, use)) return;
      if (holder->memory->size != 0) size = holder->memory->size;
    }
    keep_data(use.target, size);
  }

  void keep_data(VirtAddr at, std::uint64_t size) {
    keep(at, size, KeptHow::bytes, "data among the code");
    out_.holds_data = true;
  }

  // To the end of the nops that stand there for it.
  [[nodiscard]] std::uint64_t patched_size(VirtAddr start) const {
    std::size_t i = index_at(start);
    if (i == q_.code.size()) return kShortestPatch;
    if (start >= q_.range.start) ++i;
    for (; i < q_.code.size() && q_.code[i].kind == InstructionKind::nop; ++i) {
    }
    if (i == 0) return kShortestPatch;
    return std::max(kShortestPatch, q_.code[i - 1].end().value - start.value);
  }

  void take(const Reference& r) {
    if (r.kind == ReferenceKind::branch || r.kind == ReferenceKind::call ||
        r.kind == ReferenceKind::symbol || r.target == q_.range.start)
      return;
    if (r.target == q_.range.end && q_.end_is_function) return;
    if (in_label_table(r.source)) return;
    const bool may_be_code = r.kind == ReferenceKind::lea || r.kind == ReferenceKind::word;
    const CodeInstruction* holder = may_be_code ? q_.holder_of(r.source) : nullptr;
    if (holder != nullptr && r.kind == ReferenceKind::lea && holder->rip_target != r.target) return;
    if (holder != nullptr && r.kind == ReferenceKind::word) {
      if (!states_address(*holder, r.target)) return;
      const bool operand = holder->memory && !holder->is_lea() && holder->immediate != as_signed(r);
      if (operand && r.target < q_.range.end) return keep_data(r.target, operand_size(*holder));
    }
    note_data(r.target);
    // Its own labels are for its own jumps.
    if (holder != nullptr && q_.jumps_to_labels && q_.is_own_code(r.source)) return;
    name(r.target, r.source);
  }

  // What is no instruction's start names none, and ends no range of them.
  void name(VirtAddr target, VirtAddr source) {
    const std::size_t i = index_at(target);
    const bool boundary =
        target == q_.range.end || (i < q_.code.size() && q_.code[i].address == target);
    if (boundary) named_.push_back({target, source});
  }

  static std::int64_t as_signed(const Reference& r) {
    return static_cast<std::int64_t>(r.target.value);
  }
  static std::uint64_t operand_size(const CodeInstruction& code) {
    const bool known = code.memory->size != 0 && !code.memory->index;
    return known ? code.memory->size : kLongestOperand;
  }

  // What is no instruction, or one that does nothing, may be data.
  void note_data(VirtAddr target) {
    if (target == q_.range.end) return;
    const std::size_t i = index_at(target);
    const bool boundary = i < q_.code.size() && q_.code[i].address == target;
    if (!boundary || is_kept_filler(q_.code[i])) out_.holds_data = true;
  }

  [[nodiscard]] bool in_label_table(VirtAddr source) const {
    return std::ranges::any_of(q_.label_tables,
                               [&](const CodeRange& table) { return table.contains(source); });
  }

  // Fault tables name instructions, restartable sequences and protected ranges name two ends. Which
  // one an address is cannot be seen: nothing moves from the first to the last of them.
  void keep_named() {
    if (named_.empty()) return;
    const auto [low, high] = std::ranges::minmax(named_, {}, &Named::target);
    VirtAddr start = low.target;
    for (const Reference& r : q_.references) {
      if (r.target == q_.range.start && r.kind != ReferenceKind::branch &&
          r.kind != ReferenceKind::call && is_near_named(r.source))
        start = q_.range.start;
    }
    keep(start, high.target.value + 1 - start.value, KeptHow::address,
         "an address in data that may be an instruction's");
  }

  [[nodiscard]] bool is_near_named(VirtAddr source) const {
    return source.value != 0 && std::ranges::any_of(named_, [&](const Named& named) {
             return near(named.source, source);
           });
  }
  static bool near(VirtAddr a, VirtAddr b) {
    return a.value <= b.value + kNear && b.value <= a.value + kNear;
  }

  // Code that takes the addresses of the function and of its end, and subtracts, has its size: it
  // copies it, or compares addresses with both.
  void keep_copied() {
    for (const Reference& first : q_.references) {
      if (first.target != q_.range.start || !takes_address(first)) continue;
      for (const Reference& last : q_.references) {
        if (last.target != q_.range.end || !takes_address(last)) continue;
        if (!near(first.source, last.source) || !subtracts_near(first.source, last.source))
          continue;
        return keep(q_.range.start, q_.range.end.value - q_.range.start.value, KeptHow::bytes,
                    "code whose size is taken");
      }
    }
  }

  static bool takes_address(const Reference& r) {
    return r.kind == ReferenceKind::lea || r.kind == ReferenceKind::word;
  }

  [[nodiscard]] bool subtracts_near(VirtAddr a, VirtAddr b) const {
    const auto code = q_.function_of(a);
    const std::uint64_t low = std::min(a, b).value, high = std::max(a, b).value + kNear;
    return std::ranges::any_of(code, [&](const CodeInstruction& c) {
      return c.end().value >= low && c.address.value <= high && subtracts(c);
    });
  }

  const KeptQuestion& q_;
  std::vector<Named> named_;
  FoundKept out_;
};

}  // namespace

bool is_operand(const CodeInstruction& holder, const CodeUse& use) {
  return holder.rip_target == use.target && !holder.is_lea() &&
         holder.kind != InstructionKind::nop && holder.memory &&
         holder.address.value + holder.encoding.modrm_at == use.source.value;
}

FoundKept find_kept_code(const KeptQuestion& question) { return KeptFinder(question).run(); }

bool states_address(const CodeInstruction& code, VirtAddr address) {
  const auto value = static_cast<std::int64_t>(address.value);
  return code.opaque || code.immediate == value ||
         (code.memory && !code.memory->rip_relative && code.memory->displacement == value) ||
         code.rip_target == address ||
         (code.encoding.map == OpcodeMap::one_byte && code.encoding.opcode >= 0xa0 &&
          code.encoding.opcode <= 0xa3);
}

}  // namespace reprobe
