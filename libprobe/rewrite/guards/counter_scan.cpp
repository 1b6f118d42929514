#include "libprobe/rewrite/guards/counter_scan.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "libprobe/code/flow_scan.hpp"
#include "libprobe/code/x86_length.hpp"
#include "libprobe/elf/dynamic_tables.hpp"
#include "libprobe/rewrite/guards/start_code.hpp"

namespace reprobe {
namespace {

// The longest memory operand (Intel SDM volume 1, chapter 15: 64 bytes) that could hold a counter
// in its middle.
constexpr std::uint64_t kLongestScanned = 64;
constexpr std::uint64_t kSlotSize = 8;
// Segments of a sane file do not overlap.
constexpr std::uint64_t kMaxPasses = 4;
// More finds than this are none of a compiler's.
constexpr std::size_t kMostCandidates = std::size_t{1} << 17;

// A word that is, or looks like, the operand of an instruction that leads to a counter.
struct Candidate {
  VirtAddr field;
  auto operator<=>(const Candidate&) const = default;
};

class CounterScan {
 public:
  CounterScan(const ElfFile& file, const CodeRanges& ranges, std::span<const VirtAddr> counters)
      : file_(file), ranges_(ranges), counters_(counters) {}

  CounterReferences run() {
    if (counters_.empty()) return std::move(out_);
    take_words();
    make_filter();
    find_got();
    scan_segments();
    std::ranges::sort(candidates_);
    candidates_.erase(std::unique(candidates_.begin(), candidates_.end()), candidates_.end());
    confirm();
    std::ranges::sort(out_.found, {}, [](const CounterReference& r) { return r.code.address; });
    return std::move(out_);
  }

 private:
  // The counter at the address, or one that an operand of `size` bytes there would touch.
  [[nodiscard]] std::optional<std::size_t> counter_in(VirtAddr at, std::uint64_t size) const {
    // The first that ends behind `at`.
    const std::uint64_t low = at.value - std::min(at.value, kCounterSize - 1);
    const auto it = std::ranges::lower_bound(counters_, VirtAddr{low});
    if (it == counters_.end() || !touches(*it, at, size)) return std::nullopt;
    return static_cast<std::size_t>(it - counters_.begin());
  }

  // All that an operand of `size` bytes there would touch.
  [[nodiscard]] std::vector<std::size_t> counters_in(VirtAddr at, std::uint64_t size) const {
    std::vector<std::size_t> all;
    const auto first = counter_in(at, size);
    for (std::size_t i = first.value_or(counters_.size());
         i < counters_.size() && touches(counters_[i], at, size); ++i) {
      all.push_back(i);
    }
    return all;
  }

  static bool touches(VirtAddr counter, VirtAddr at, std::uint64_t size) {
    return counter < at || counter.value - at.value < size;
  }

  void unknown(std::size_t counter, VirtAddr at, std::string what) {
    out_.unknown.push_back({counter, at, std::move(what)});
  }

  // An operand of unknown size may touch any of them.
  void unknown_near(VirtAddr target, VirtAddr at, const std::string& what) {
    for (const std::size_t counter : counters_in(target, kLongestScanned))
      unknown(counter, at, what);
  }

  void unknown_for_all(VirtAddr at, const std::string& what) {
    for (std::size_t i = 0; i < counters_.size(); ++i) unknown(i, at, what);
  }

  // Words of data that hold the address: slots of the GOT, which code loads, or something unknown.
  void take_words() {
    std::vector<AddressRanges::Range> asked;
    for (const VirtAddr counter : counters_)
      asked.push_back({counter, VirtAddr{counter.value + kCounterSize}});
    const References references = find_references(file_, AddressRanges(std::move(asked)));
    if (!references.unread.empty()) {
      unknown_for_all(VirtAddr{}, references.unread + " could not be read");
    }
    for (const DynamicTable& table : dynamic_tables(file_)) {
      if (!table.whole) unknown_for_all(table.address, "relocations that cannot be read");
    }
    for (const Reference& r : references.found) {
      const bool word = r.kind == ReferenceKind::word;
      if (!word && r.kind != ReferenceKind::relocation) continue;
      const auto counter = counter_in(r.target, 1);
      const Section* section = file_.section_containing(r.source);
      if (!counter || (word && (is_code(r.source) || is_table(section) || is_header(r.source))))
        continue;
      const bool slot = section != nullptr && counters_[*counter] == r.target &&
                        (section->name == ".got" || section->name == ".got.plt");
      if (slot) {
        slots_[r.source.value] = *counter;
      } else {
        unknown(*counter, r.source, "a word of data holds the counter's address");
      }
    }
  }

  // Code is searched for operands of its own; symbols and relocations only say what is known.
  [[nodiscard]] bool is_code(VirtAddr at) const {
    const Section* section = file_.section_containing(at);
    return section != nullptr && section->executable();
  }
  // The ELF header and the program headers are loaded with the code of many programs.
  [[nodiscard]] bool is_header(VirtAddr at) const {
    constexpr std::uint64_t kHeader = 64;  // Elf64_Ehdr
    const auto offset = file_.offset_of(at);
    const ElfHeader& h = file_.header();
    return offset && (offset->value < kHeader || in_range(offset->value, h.phoff.value,
                                                          file_.segments().size() * h.phentsize));
  }
  static bool is_table(const Section* section) {
    return section != nullptr &&
           (section->holds_symbols() || section->holds_relocations() || section->type == SHT_NOTE);
  }

  void make_filter() {
    low_ = counters_.front().value;
    high_ = counters_.back().value + kCounterSize;
    if (!slots_.empty()) {
      low_ = std::min(low_, slots_.begin()->first);
      high_ = std::max(high_, slots_.rbegin()->first + kSlotSize);
    }
    low_ -= std::min(low_, kLongestScanned);
  }

  [[nodiscard]] bool may_touch(std::uint64_t target) const {
    if (target - low_ >= high_ - low_) return false;
    if (counter_in(VirtAddr{target}, kLongestScanned)) return true;
    const auto slot = slots_.upper_bound(target + kLongestScanned);
    return slot != slots_.begin() && std::prev(slot)->first + kSlotSize > target;
  }

  // The large code model adds a 64-bit distance to the address of the GOT.
  void find_got() {
    for (const Section& section : file_.sections()) {
      if (section.name == ".got" || section.name == ".got.plt") got_.push_back(section.addr.value);
    }
  }
  [[nodiscard]] bool may_be_distance(std::uint64_t value) const {
    return std::ranges::any_of(got_, [&](std::uint64_t got) { return may_touch(got + value); });
  }

  void scan_segments() {
    std::uint64_t budget = file_.source().size() * kMaxPasses;
    for (const Segment& segment : file_.segments()) {
      if (segment.type != PT_LOAD || (segment.flags & PF_X) == 0) continue;
      const auto bytes = file_.source().slice(segment.offset, segment.filesz, "a segment");
      if (!bytes || segment.filesz.value > budget) {
        return unknown_for_all(segment.vaddr, "code that cannot be read");
      }
      budget -= segment.filesz.value;
      if (!scan(*bytes, segment.vaddr.value))
        return unknown_for_all(segment.vaddr, "too much code that looks like a use");
    }
  }

  static std::uint64_t sign_extended(std::uint32_t word) {
    return (std::uint64_t{word} ^ 0x80000000U) - 0x80000000U;
  }
  // REX.W b8+r: mov $imm64,%r64
  static bool is_movabs(std::byte rex, std::byte opcode) {
    return (rex & std::byte{0xfe}) == std::byte{0x48} &&
           (opcode & std::byte{0xf8}) == std::byte{0xb8};
  }

  // An immediate of 0 to 4 bytes may follow the displacement, which counts from behind it.
  // False where there is too much.
  bool scan(ByteView bytes, std::uint64_t address) {
    constexpr std::uint64_t kMostImmediate = 4;
    const bool absolute = file_.header().type == ET_EXEC;
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      word = (word >> 8) | (std::to_integer<std::uint32_t>(bytes[i]) << 24);
      if (i < 3) continue;
      const std::uint64_t end = address + i + 1;
      const std::uint64_t target = end + sign_extended(word);
      const bool near = target + kMostImmediate - low_ < high_ - low_ + kMostImmediate;
      const bool hit =
          (near && (may_touch(target) || may_touch(target + 1) || may_touch(target + 2) ||
                    may_touch(target + 4))) ||
          (absolute && may_touch(word)) ||
          (i >= 5 && is_movabs(bytes[i - 5], bytes[i - 4]) && may_be_distance(sign_extended(word)));
      if (!hit) continue;
      if (candidates_.size() == kMostCandidates) return false;
      candidates_.push_back({VirtAddr{end - 4}});
    }
    return true;
  }

  // Decodes the functions around the candidates: most are no operands at all.
  void confirm() {
    std::uint64_t budget = file_.source().size() * kMaxPasses;
    for (std::size_t i = 0; i < candidates_.size();) {
      const VirtAddr field = candidates_[i].field;
      const auto range = ranges_.find(field);
      if (is_start_code_operand(file_, field)) {
        ++i;
        continue;
      }
      const std::uint64_t size = range ? range->end.value - range->start.value : 0;
      const bool affordable = range && size <= budget;
      if (affordable) budget -= size;
      const auto code = affordable ? ranges_.decode(*range) : std::nullopt;
      if (!code) {
        not_confirmed(field);
        ++i;
        continue;
      }
      for (; i < candidates_.size() && candidates_[i].field < range->end; ++i) {
        if (!is_start_code_operand(file_, candidates_[i].field)) take(*code, candidates_[i].field);
      }
    }
  }

  // Bytes outside of every function that is known: no instruction that has the field, wherever it
  // may start, may lead to a counter.
  void not_confirmed(VirtAddr field) {
    CounterReferences certain = std::move(out_);
    out_ = {};
    for (std::uint64_t before = 1; before < kLongestX86 && before <= field.value; ++before) {
      const auto code = ranges_.decode_at(VirtAddr{field.value - before});
      if (code) take(std::span(&*code, 1), field);
    }
    const CounterReferences maybe = std::move(out_);
    out_ = std::move(certain);
    const auto add_unknown = [&](std::size_t counter) {
      unknown(counter, field, "code outside of every known function may use it");
    };
    for (const CounterReference& r : maybe.found) add_unknown(r.counter);
    for (const UnknownReference& r : maybe.unknown) add_unknown(r.counter);
  }

  // The instruction that has the field, if one has.
  void take(std::span<const CodeInstruction> code, VirtAddr field) {
    const auto after = std::ranges::upper_bound(code, field, {}, &CodeInstruction::address);
    if (after == code.begin()) return;
    const CodeInstruction& holder = *std::prev(after);
    if (field < holder.end()) take_field(holder, field.value - holder.address.value);
  }

  void take_field(const CodeInstruction& holder, std::uint64_t at) {
    const X86Encoding& e = holder.encoding;
    const std::uint64_t behind = holder.size.value - at;  // bytes from the field to the end
    if (holder.opaque || (is_moffs(holder) && behind == 8)) {
      take_not_understood(holder, at);
    } else if (e.is_memory() && e.displacement_size == 4 && e.displacement_at == at) {
      const auto target = operand_address(holder);
      if (target) return take_operand(holder, *target);
      // sem(,%rax,2), or a displacement that happens to be as large.
      const auto raw = static_cast<std::uint64_t>(holder.memory->displacement);
      unknown_near(VirtAddr{raw}, holder.address, "an indexed operand near the counter");
    } else if (holder.immediate && (behind == 4 || behind == 8)) {
      take_immediate(holder, behind == 8);
    }
  }

  // a0-a3: mov between %rax and an address of 64 bits.
  static bool is_moffs(const CodeInstruction& code) {
    return code.encoding.map == OpcodeMap::one_byte && (code.encoding.opcode & 0xfc) == 0xa0;
  }

  // Whatever the field may mean, it must not lead to a counter.
  void take_not_understood(const CodeInstruction& code, std::uint64_t at) {
    const ByteView bytes = file_.bytes_at(code.address, code.size);
    if (at + 4 > bytes.size()) return;
    const auto raw = static_cast<std::uint32_t>(
        load_uint(bytes, static_cast<std::size_t>(at), 4, std::endian::little));
    for (const std::uint64_t value : {std::uint64_t{raw}, code.end().value + sign_extended(raw)}) {
      unknown_near(VirtAddr{value}, code.address, "an instruction that is not understood");
      const auto slot = slots_.find(value);
      if (slot != slots_.end())
        unknown(slot->second, code.address, "an instruction that is not understood");
    }
  }

  // Of an operand without registers.
  static std::optional<VirtAddr> operand_address(const CodeInstruction& code) {
    if (code.rip_target) return code.rip_target;
    if (!code.memory || code.memory->base || code.memory->index || code.memory->segment)
      return std::nullopt;
    return VirtAddr{static_cast<std::uint64_t>(code.memory->displacement)};
  }

  void take_operand(const CodeInstruction& code, VirtAddr target) {
    using How = CounterReference::How;
    if (code.is_lea()) {
      if (const auto counter = counter_in(target, 1)) {
        if (counters_[*counter] == target) return add(code, *counter, How::address);
        unknown(*counter, code.address, "the address of a counter's middle");
      }
      return;
    }
    // A nop's operand is none; an access of unknown size may be of any.
    if (code.kind == InstructionKind::nop) return;
    const std::uint64_t size =
        code.memory->size != 0 ? std::uint64_t{code.memory->size} : kLongestScanned;
    for (const std::size_t counter : counters_in(target, size)) add(code, counter, How::memory);
    const auto slot = slots_.lower_bound(target.value - std::min(target.value, kSlotSize - 1));
    if (slot != slots_.end() && slot->first < target.value + size) {
      if (slot->first == target.value && size == kSlotSize) {
        add(code, slot->second, How::slot);
      } else {
        unknown(slot->second, code.address, "an operand that overlaps the slot of the address");
      }
    }
  }

  void take_immediate(const CodeInstruction& code, bool wide) {
    const auto value = static_cast<std::uint64_t>(*code.immediate);
    if (file_.header().type == ET_EXEC) {
      if (const auto counter = counter_in(VirtAddr{value}, 1))
        return add(code, *counter, CounterReference::How::immediate);
    }
    for (const std::uint64_t got : got_) {
      if (!wide) break;
      const VirtAddr target{got + value};
      const auto slot = slots_.find(target.value);
      if (slot != slots_.end()) unknown(slot->second, code.address, "its slot's distance is taken");
      const auto counter = counter_in(target, 1);
      if (counter && counters_[*counter] == target) {
        out_.found.push_back({code, *counter, CounterReference::How::distance, VirtAddr{got}});
      } else if (counter) {
        unknown(*counter, code.address, "its distance from the GOT is taken");
      }
    }
  }

  void add(const CodeInstruction& code, std::size_t counter, CounterReference::How how) {
    out_.found.push_back({code, counter, how, {}});
  }

  const ElfFile& file_;
  const CodeRanges& ranges_;
  std::span<const VirtAddr> counters_;
  std::map<std::uint64_t, std::size_t> slots_;  // address of the GOT's word -> counter
  std::uint64_t low_{}, high_{};                // of everything that is looked for
  std::vector<std::uint64_t> got_;              // addresses that distances may count from
  std::vector<Candidate> candidates_;
  CounterReferences out_;
};

}  // namespace

CounterReferences find_counter_references(const ElfFile& file, const CodeRanges& ranges,
                                          std::span<const VirtAddr> counters) {
  return CounterScan(file, ranges, counters).run();
}

}  // namespace reprobe
