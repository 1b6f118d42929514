#include "libprobe/verify/slot_reading.hpp"

#include <algorithm>

#include "libprobe/notes/stapsdt.hpp"

namespace reprobe {
namespace {

constexpr std::int64_t kBelowRedZone = 128, kPushed = 8;
constexpr std::uint64_t kCallField = 8, kArgumentField = 16;
constexpr std::uint64_t kSlotPages = 4096;
constexpr unsigned kCounting = 1;  // rcx

class SlotReader {
 public:
  SlotReader(const ElfFile& file, VirtAddr at) : file_(file), at_(at) {}

  std::optional<SlotReading> run() {
    const auto first = read_x86(file_, at_);
    if (!first) return std::nullopt;
    const bool good = first->operation == Operation::cmp ? plain() : keeping();
    if (!good || !is_slot()) return std::nullopt;
    std::ranges::sort(out_.steps, {}, &SlotStep::begin);
    return std::move(out_);
  }

 private:
  // cmpl $0,slot(%rip); jne 1f; ... 1: lea -128(%rsp),%rsp; the call; jmp back
  bool plain() {
    const auto compare = take(0);
    const auto branch = take(0);
    const bool tests = branch && compare->operation == Operation::cmp && is_word(*compare) &&
                       compare->operands[0].kind == ReadOperand::Kind::memory &&
                       compare->immediate() == 0 && branch->operation == Operation::jne &&
                       branch->target;
    if (!tests) return false;
    out_.slot = *compare->memory->address;
    out_.next = branch->end();
    at_ = *branch->target;
    if (!moves_stack(-kBelowRedZone, 0) || !calls()) return false;
    const auto jump = take(0);
    return jump && jump->flow == ReadFlow::jump && jump->target == out_.next;
  }

  // lea -128(%rsp),%rsp; push %rcx; mov slot(%rip),%ecx; jrcxz 1f; pop %rcx; the call; jmp 2f;
  // 1: pop %rcx; lea 128(%rsp),%rsp; 2:
  bool keeping() {
    out_.keeps_flags = true;
    if (!moves_stack(-kBelowRedZone, 0)) return false;
    if (!counts(Operation::push, kBelowRedZone)) return false;
    const auto load = take(kBelowRedZone + kPushed);
    const auto branch = take(kBelowRedZone + kPushed);
    const bool tests = branch && load->operation == Operation::mov && is_word(*load) &&
                       load->register_at(0) == kCounting &&
                       load->operands[1].kind == ReadOperand::Kind::memory &&
                       branch->operation == Operation::jrcxz && !branch->prefixed && branch->target;
    if (!tests) return false;
    out_.slot = *load->memory->address;
    if (!counts(Operation::pop, kBelowRedZone + kPushed) || !calls()) return false;
    const auto jump = take(0);
    if (!jump || jump->flow != ReadFlow::jump || at_ != branch->target) return false;
    if (!counts(Operation::pop, kBelowRedZone + kPushed)) return false;
    if (!moves_stack(kBelowRedZone, kBelowRedZone)) return false;
    out_.next = at_;
    return jump->target == out_.next;
  }

  // push argument(%rip); call *entry(%rip); lea 136(%rsp),%rsp
  bool calls() {
    const auto push = take(kBelowRedZone);
    const auto call = take(kBelowRedZone + kPushed);
    return call && push->operation == Operation::push && reads(*push, kArgumentField) &&
           call->flow == ReadFlow::indirect_call && reads(*call, kCallField) &&
           moves_stack(kBelowRedZone + kPushed, kBelowRedZone + kPushed);
  }

  bool reads(const X86Reading& code, std::uint64_t field) const {
    return !code.prefixed && code.rip_field && code.memory && code.memory->bytes == 8 &&
           code.memory->address == VirtAddr{out_.slot.value + field};
  }

  static bool is_word(const X86Reading& code) {
    return !code.prefixed && code.rip_field && code.memory && code.memory->bytes == 4 &&
           code.memory->address.has_value();
  }

  bool counts(Operation operation, std::int64_t lower) {
    const auto code = take(lower);
    return code && code->operation == operation && !code->prefixed && !code->memory &&
           code->register_at(0) == kCounting && code->operands[0].bits == 64;
  }

  // lea by(%rsp),%rsp
  bool moves_stack(std::int64_t by, std::int64_t lower) {
    const auto code = take(lower);
    return code && code->operation == Operation::lea && !code->prefixed &&
           code->register_at(0) == kStackPointer && code->operands[0].bits == 64 && code->memory &&
           code->memory->base == kStackPointer && !code->memory->index &&
           !code->memory->address32 && code->memory->displacement == by;
  }

  std::optional<X86Reading> take(std::int64_t lower) {
    auto code = read_x86(file_, at_);
    if (!code) return std::nullopt;
    out_.steps.push_back({at_, code->end(), lower});
    at_ = code->end();
    return code;
  }

  [[nodiscard]] bool is_slot() const {
    const Section* slots = file_.section(kSlotSection);
    const std::uint64_t from = slots == nullptr ? 0 : out_.slot.value - slots->addr.value;
    return slots != nullptr && out_.slot >= slots->addr && slots->size.value >= kReadSlotSize &&
           from <= slots->size.value - kReadSlotSize && from % kReadSlotSize == 0;
  }

  const ElfFile& file_;
  VirtAddr at_;
  SlotReading out_;
};

}  // namespace

std::optional<SlotReading> read_slot_test(const ElfFile& file, VirtAddr at) {
  return SlotReader(file, at).run();
}

std::optional<std::string> wrong_slots(const ElfFile& file) {
  const Section* slots = file.section(kSlotSection);
  if (slots == nullptr) return std::nullopt;
  if (slots->addr.value % kSlotPages != 0 || slots->size.value % kSlotPages != 0)
    return "the slots do not fill whole pages";
  const auto contents = file.contents(*slots);
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  if (slots->nobits() || !contents || !std::ranges::all_of(*contents, is_zero))
    return "a slot is not 0 in the file";
  const Segment* load = file.load_segment(slots->addr);
  if (load == nullptr || (load->flags & PF_W) != 0 ||
      slots->addr.value + slots->size.value > load->vaddr.value + load->filesz.value)
    return "the slots are not in memory that is read-only";
  return std::nullopt;
}

}  // namespace reprobe
