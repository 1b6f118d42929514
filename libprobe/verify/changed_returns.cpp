#include "libprobe/verify/changed_returns.hpp"

#include <map>
#include <optional>
#include <vector>

#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {
namespace {

constexpr std::int64_t kReturnWord = 8;
// Such functions are small; of a larger one the rest is not read.
constexpr unsigned kMostInstructions = 1024;

// How far below the return address the two registers point.
struct StackPlace {
  std::int64_t stack{};
  std::optional<std::int64_t> frame;
};

// How far below it the memory operand lies; nothing where that is not known.
std::optional<std::int64_t> below_return(const X86Reading& code, const StackPlace& at) {
  if (!code.memory || code.memory->index || code.memory->segment) return std::nullopt;
  if (code.memory->base == kStackPointer) return at.stack - code.memory->displacement;
  if (code.memory->base == kFramePointer && at.frame) return *at.frame - code.memory->displacement;
  return std::nullopt;
}

bool writes_memory(const X86Reading& code) {
  for (const ReadOperand& operand : code.shown()) {
    if (operand.kind == ReadOperand::Kind::memory && operand.written) return true;
  }
  return false;
}

// The frame behind the instruction; nothing where the stack pointer is not known any more.
std::optional<StackPlace> place_behind(const X86Reading& code, StackPlace at) {
  const bool writes_frame = (code.writes & (1U << kFramePointer)) != 0;
  const bool whole =
      code.operands[0].bits == 64 || code.operands[0].kind != ReadOperand::Kind::registr;
  switch (code.operation) {
    case Operation::push:
      at.stack += kReturnWord;
      return at;
    case Operation::pop:
      if (code.register_at(0) == kStackPointer) return std::nullopt;
      at.stack -= kReturnWord;
      if (writes_frame) at.frame.reset();
      return at;
    case Operation::leave:
      if (!at.frame) return std::nullopt;
      return StackPlace{*at.frame - kReturnWord, std::nullopt};
    case Operation::mov:
      if (whole && code.register_at(0) == kFramePointer && code.register_at(1) == kStackPointer)
        return StackPlace{at.stack, at.stack};
      if (whole && code.register_at(0) == kStackPointer && code.register_at(1) == kFramePointer &&
          at.frame)
        return StackPlace{*at.frame, at.frame};
      break;
    case Operation::lea:
      if (whole && code.register_at(0) == kStackPointer) {
        const auto to = below_return(code, at);
        return to ? std::optional(StackPlace{*to, at.frame}) : std::nullopt;
      }
      break;
    case Operation::add:
    case Operation::sub:
      if (code.register_at(0) == kStackPointer && code.immediate()) {
        const bool down = code.operation == Operation::sub;
        at.stack += down ? *code.immediate() : -*code.immediate();
        return at;
      }
      break;
    default:
      break;
  }
  if (writes_frame) at.frame.reset();
  if ((code.writes & (1U << kStackPointer)) != 0) return std::nullopt;
  return at;
}

}  // namespace

bool changes_its_return(const ElfFile& file, const CodeRanges& ranges, VirtAddr function) {
  const auto range = ranges.find(function);
  if (!range || range->start != function) return false;
  std::multimap<VirtAddr, StackPlace> open{{function, StackPlace{}}};
  std::map<VirtAddr, StackPlace> passed;
  bool changed = false;
  for (unsigned i = 0; i < kMostInstructions && !open.empty(); ++i) {
    const auto [at, frame] = *open.begin();
    open.erase(open.begin());
    if (!range->contains(at)) continue;
    const auto [before, fresh] = passed.emplace(at, frame);
    // Ways that meet with other frames: one of them is none.
    if (!fresh && before->second.stack != frame.stack) return false;
    if (!fresh) continue;
    const auto code = read_x86(file, at);
    if (!code) continue;
    const auto to = below_return(*code, frame);
    if (to && *to > -kReturnWord && *to < std::int64_t{code->memory->bytes} && writes_memory(*code))
      changed = true;
    // What is called may not come back.
    if (code->flow == ReadFlow::ret || code->is_call()) continue;
    const auto next = place_behind(*code, frame);
    if (!next) continue;
    if (next->stack < 0) changed = true;
    if (!code->ends_block()) open.emplace(code->end(), *next);
    const bool jumps = code->flow == ReadFlow::jump || code->flow == ReadFlow::conditional;
    if (jumps && code->target) open.emplace(*code->target, *next);
  }
  return changed;
}

}  // namespace reprobe
