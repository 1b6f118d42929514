#include "libprobe/verify/counter_references.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "libprobe/elf/dynamic_tables.hpp"

namespace reprobe {
namespace {

// No operand is longer (Intel SDM volume 1, chapter 15); one that begins so far before a counter
// may reach it.
constexpr std::uint64_t kWidestOperand = 64;
constexpr std::uint64_t kSlotBytes = 8;
constexpr std::uint64_t kReachPasses = 4;
constexpr std::size_t kMostPlaces = std::size_t{1} << 17;

constexpr std::uint64_t sign_extended(std::uint64_t word) {
  return (word ^ 0x80000000U) - 0x80000000U;
}

// Of a file's executable bytes, fields of four bytes that lead near a counter or to a word that
// holds its address are found first; then the functions around them are read.
class ReachFinder {
 public:
  ReachFinder(const ElfFile& file, const CodeRanges& ranges, std::span<const VirtAddr> counters)
      : file_(file), ranges_(ranges), counters_(counters) {}

  CounterReach run() {
    if (counters_.empty()) return {};
    read_relocations();
    if (file_.header().type == ET_EXEC) read_words();
    make_targets();
    find_fields();
    for (const VirtAddr field : fields_) {
      if (!start_code_.contains(field.value)) find_start_code(field);
    }
    for (const VirtAddr field : fields_) {
      if (read_.contains(field.value) || start_code_.contains(field.value)) continue;
      if (!read_function(field)) read_anyhow(field);
    }
    const auto key = [](const CounterOperand& o) { return std::pair(o.code.address, o.counter); };
    std::ranges::sort(out_.operands, {}, key);
    const auto same = [&](const auto& a, const auto& b) { return key(a) == key(b); };
    out_.operands.erase(std::unique(out_.operands.begin(), out_.operands.end(), same),
                        out_.operands.end());
    return std::move(out_);
  }

 private:
  void unknown(std::size_t counter, VirtAddr at, const char* what) {
    out_.unknown.push_back({counter, at, what});
  }
  void unknown_for_all(VirtAddr at, const char* what) {
    for (std::size_t i = 0; i < counters_.size(); ++i) unknown(i, at, what);
  }

  // Those with a byte in [at, at + size).
  [[nodiscard]] std::vector<std::size_t> counters_in(VirtAddr at, std::uint64_t size) const {
    std::vector<std::size_t> found;
    const VirtAddr low{at.value - std::min(at.value, kCounterBytes - 1)};
    for (auto it = std::ranges::lower_bound(counters_, low);
         it != counters_.end() && (it->value <= at.value || it->value - at.value < size); ++it) {
      found.push_back(static_cast<std::size_t>(it - counters_.begin()));
    }
    return found;
  }

  // A word of memory that holds an address when the program runs. Code loads it from the GOT; what
  // is done with any other is not known.
  void add_word(VirtAddr place, std::uint64_t value) {
    for (const std::size_t counter : counters_in(VirtAddr{value}, 1)) {
      const Section* section = file_.section_containing(place);
      const bool got = section != nullptr && counters_[counter].value == value &&
                       (section->name == ".got" || section->name == ".got.plt");
      if (got) {
        slots_[place.value] = counter;
      } else {
        unknown(counter, place, "a word of data holds the counter's address");
      }
    }
  }

  // As the dynamic linker finds them.
  void read_relocations() {
    std::optional<SymbolTable> symbols;
    for (const Section& section : file_.sections()) {
      if (section.type != SHT_DYNSYM) continue;
      if (auto table = file_.symbol_table(section)) symbols.emplace(std::move(*table));
    }
    for (const DynamicTable& table : dynamic_tables(file_)) {
      if (!table.whole) unknown_for_all(table.address, "relocations that cannot be read");
      for_each_relocation(file_, table, [&](const DynamicRelocation& relocation) {
        std::uint64_t value = 0;
        if (relocation.symbol != 0 && symbols && relocation.symbol < symbols->size())
          value = symbols->at(relocation.symbol).value.value;
        const ByteView word = file_.bytes_at(relocation.place, Size{kSlotBytes});
        if (relocation.addend) {
          value += static_cast<std::uint64_t>(*relocation.addend);
        } else if (word.size() == kSlotBytes) {
          value += load_uint(word, 0, kSlotBytes, file_.header().order);
        }
        add_word(relocation.place, value);
      });
    }
  }

  // A program at a fixed address may hold addresses anywhere in its data.
  void read_words() {
    for (const Section& section : file_.sections()) {
      const bool data = section.allocated() && !section.executable() && !section.holds_symbols() &&
                        !section.holds_relocations() && section.type != SHT_NOTE &&
                        section.type != SHT_RELR;
      const auto bytes = data ? file_.contents(section) : Result<ByteView>(ByteView{});
      if (!bytes) unknown_for_all(section.addr, "data that cannot be read");
      if (!bytes) continue;
      for (std::size_t i = 0; i + 4 <= bytes->size(); ++i) {
        const std::uint64_t value = load_uint(*bytes, i, 4, std::endian::little);
        if (near_counters(value)) add_word(VirtAddr{section.addr.value + i}, value);
      }
    }
  }
  [[nodiscard]] bool near_counters(std::uint64_t value) const {
    return value >= counters_.front().value && value < counters_.back().value + kCounterBytes;
  }

  // Addresses that an operand may start at.
  void make_targets() {
    const auto add = [&](std::uint64_t at, std::uint64_t size) {
      targets_.emplace_back(at - std::min(at, kWidestOperand), at + size);
    };
    for (const VirtAddr counter : counters_) add(counter.value, kCounterBytes);
    for (const auto& [slot, counter] : slots_) add(slot, kSlotBytes);
    std::ranges::sort(targets_);
    for (const Section& section : file_.sections()) {
      if (section.name == ".got" || section.name == ".got.plt") got_.push_back(section.addr.value);
    }
  }
  [[nodiscard]] bool is_target(std::uint64_t at) const {
    if (at < targets_.front().first || at >= targets_.back().second) return false;
    auto it =
        std::ranges::upper_bound(targets_, at, {}, &std::pair<std::uint64_t, std::uint64_t>::first);
    // The widths differ by no more than a word's: the last three tell.
    for (unsigned back = 0; back < 3 && it != targets_.begin(); ++back) {
      --it;
      if (at < it->second) return true;
    }
    return false;
  }

  // A displacement counts from the instruction's end, up to four bytes of immediate behind it.
  [[nodiscard]] bool may_lead_there(std::uint64_t word, std::uint64_t end) const {
    const std::uint64_t value = sign_extended(word);
    for (const std::uint64_t behind : {0U, 1U, 2U, 4U}) {
      if (is_target(end + value + behind)) return true;
    }
    return file_.header().type == ET_EXEC && is_target(word);
  }
  // REX.W b8+r, mov $imm64,%r64: the distance from the GOT.
  [[nodiscard]] bool may_be_distance(ByteView instruction, std::uint64_t word) const {
    const auto byte = [&](std::size_t i) { return std::to_integer<unsigned>(instruction[i]); };
    return (byte(0) & 0xfe) == 0x48 && (byte(1) & 0xf8) == 0xb8 &&
           std::ranges::any_of(
               got_, [&](std::uint64_t got) { return is_target(got + sign_extended(word)); });
  }

  void find_fields() {
    std::uint64_t budget = file_.source().size() * kReachPasses;
    for (const Segment& segment : file_.segments()) {
      if (segment.type != PT_LOAD || (segment.flags & PF_X) == 0) continue;
      const auto bytes = file_.source().slice(segment.offset, segment.filesz, "a segment");
      if (!bytes || segment.filesz.value > budget)
        return unknown_for_all(segment.vaddr, "code that cannot be read");
      budget -= segment.filesz.value;
      std::uint32_t word = 0;
      for (std::size_t i = 0; i < bytes->size(); ++i) {
        word = (word >> 8) | (std::to_integer<std::uint32_t>((*bytes)[i]) << 24);
        const std::uint64_t end = segment.vaddr.value + i + 1;
        const bool leads = i >= 3 && may_lead_there(word, end);
        if (!leads && (i < 5 || !may_be_distance(bytes->subspan(i - 5, 2), word))) continue;
        fields_.push_back(VirtAddr{end - 4});
        if (fields_.size() > kMostPlaces)
          return unknown_for_all(segment.vaddr, "too much code that may lead to a counter");
      }
    }
    std::ranges::sort(fields_);
  }

  // The function that holds the field, from its start on; its other fields are read with it.
  bool read_function(VirtAddr field) {
    const auto range = ranges_.find(field);
    if (!range || range->end.value - range->start.value > CodeRanges::kLongest) return false;
    for (VirtAddr at = range->start; at < range->end;) {
      const auto code = read_x86(file_, at);
      if (!code) {
        // What one decoder does not know may be any instruction.
        const auto other = ranges_.decode_at(at);
        if (!other) return false;
        take_unread(at, other->end());
        at = other->end();
        continue;
      }
      // Without symbols the range may hold it and other functions.
      if (!start_code_.contains(at.value)) take(*code);
      at = code->end();
    }
    const auto first = std::ranges::lower_bound(fields_, range->start);
    for (auto it = first; it != fields_.end() && *it < range->end; ++it) read_.insert(it->value);
    return true;
  }

  void take_unread(VirtAddr at, VirtAddr end) {
    const auto field = std::ranges::lower_bound(fields_, at);
    if (field != fields_.end() && *field < end)
      unknown_for_all(at, "an instruction that is not understood");
  }

  // Outside of every known function any start may be that of an instruction.
  void read_anyhow(VirtAddr field) {
    CounterReach certain = std::move(out_);
    out_ = {};
    for (std::uint64_t before = 1; before < kLongestReading.value && before <= field.value;
         ++before) {
      const auto code = read_x86(file_, VirtAddr{field.value - before});
      if (code && code->end().value >= field.value + 4) take(*code);
    }
    std::set<std::size_t> counters;
    for (const CounterOperand& operand : out_.operands) counters.insert(operand.counter);
    for (const UnknownUse& use : out_.unknown) counters.insert(use.counter);
    out_ = std::move(certain);
    for (const std::size_t counter : counters)
      unknown(counter, field, "code outside of every known function may use it");
  }

  // crtstuff.c's two functions without an FDE compare the end of the table of transactional memory
  // clones, which may lie where the counters begin, with its start, and give it to a function that
  // libgcc does not have any more. They read nothing there.
  // Behind a prefix there begins an instruction too, so all starts are tried.
  void find_start_code(VirtAddr field) {
    for (std::uint64_t before = 1; before <= 3; ++before) {
      const VirtAddr start{field.value - before};
      const auto first = read_x86(file_, start);
      const auto end_of_table = first ? put_address(*first) : std::nullopt;
      std::set<std::uint64_t> passed;
      if (!end_of_table || !only_compares(start, *end_of_table, passed)) continue;
      start_code_.insert(passed.begin(), passed.end());
    }
  }

  // From there to the return, a trap or the jump through a register the address is taken at least
  // twice, and nothing is read but a pointer elsewhere.
  bool only_compares(VirtAddr at, VirtAddr address, std::set<std::uint64_t>& passed) const {
    constexpr unsigned kMost = 24;
    unsigned taken = 0;
    for (unsigned i = 0; i < kMost; ++i) {
      const auto code = read_x86(file_, at);
      if (!code) return false;
      const bool loads_pointer = code->operation == Operation::mov && code->rip_field &&
                                 code->operands[0].kind == ReadOperand::Kind::registr &&
                                 counters_in(*code->memory->address, kSlotBytes).empty();
      const bool memory = code->memory && code->memory->bytes != 0;
      if ((memory && !loads_pointer) || code->is_call()) return false;
      const auto immediate = code->immediate();
      const bool computes = immediate && address_of(*immediate) == address;
      if (computes || put_address(*code) == address) ++taken;
      for (std::uint64_t byte = 0; byte < code->size.value; ++byte) passed.insert(at.value + byte);
      if (code->flow == ReadFlow::ret || code->flow == ReadFlow::trap) return taken > 1;
      if (code->flow == ReadFlow::indirect_jump)
        return taken > 1 && code->register_at(0).has_value();
      at = code->end();
    }
    return false;
  }
  [[nodiscard]] std::optional<VirtAddr> put_address(const X86Reading& code) const {
    if (code.operation == Operation::lea && code.rip_field) return code.memory->address;
    const auto immediate = code.immediate();
    const bool absolute = code.operation == Operation::mov && immediate && code.register_at(0) &&
                          file_.header().type == ET_EXEC;
    return absolute ? std::optional(address_of(*immediate)) : std::nullopt;
  }
  static VirtAddr address_of(std::int64_t immediate) {
    return VirtAddr{static_cast<std::uint64_t>(immediate)};
  }

  void take(const X86Reading& code) {
    if (code.memory && code.operation != Operation::nop) take_memory(code, *code.memory);
    for (const ReadOperand& operand : code.shown()) {
      if (operand.kind == ReadOperand::Kind::immediate) take_immediate(code, operand.immediate);
    }
  }

  void take_memory(const X86Reading& code, const ReadMemory& memory) {
    if (!memory.address) {
      // counters(,%rax,2), or a displacement that happens to be as large.
      const VirtAddr raw{static_cast<std::uint64_t>(memory.displacement)};
      if (memory.segment) return;
      for (const std::size_t counter : counters_in(raw, kWidestOperand))
        unknown(counter, code.address, "an indexed operand near the counter");
      return;
    }
    if (memory.segment) return;
    if (code.operation == Operation::lea) {
      for (const std::size_t counter : counters_in(*memory.address, 1)) add(code, counter, true);
      return;
    }
    const std::uint64_t size = memory.bytes != 0 ? memory.bytes : kWidestOperand;
    for (const std::size_t counter : counters_in(*memory.address, size)) add(code, counter, false);
    const VirtAddr at = *memory.address;
    for (auto slot = slots_.lower_bound(at.value - std::min(at.value, kSlotBytes - 1));
         slot != slots_.end() && slot->first < at.value + size; ++slot) {
      const bool whole = slot->first == at.value && code.operation == Operation::mov &&
                         code.operands[0].bits == 64 && code.register_at(0);
      if (whole) {
        add(code, slot->second, true);
      } else {
        unknown(slot->second, code.address, "another use of the word that holds the address");
      }
    }
  }

  void take_immediate(const X86Reading& code, std::int64_t immediate) {
    if (code.branch_field) return;
    const auto value = static_cast<std::uint64_t>(immediate);
    if (file_.header().type == ET_EXEC) {
      const bool puts = code.operation == Operation::mov && code.register_at(0);
      for (const std::size_t counter : counters_in(VirtAddr{value}, 1)) {
        if (puts) {
          add(code, counter, true);
        } else {
          unknown(counter, code.address, "the counter's address is computed with");
        }
      }
    }
    // The large code model adds the distance from the GOT: movabs $imm64,%r. A store of an immediate
    // to memory may be as long.
    const bool wide =
        code.operation == Operation::mov && code.size.value == 10 && code.register_at(0);
    for (const std::uint64_t got : wide ? got_ : std::vector<std::uint64_t>{}) {
      const VirtAddr target{got + value};
      const auto slot = slots_.find(target.value);
      if (slot != slots_.end()) unknown(slot->second, code.address, "its slot's distance is taken");
      for (const std::size_t counter : counters_in(target, 1)) {
        if (counters_[counter] == target) {
          out_.operands.push_back({code, counter, true, VirtAddr{got}});
        } else {
          unknown(counter, code.address, "its distance from the GOT is taken");
        }
      }
    }
  }

  // Only the counter's own address is one to follow.
  void add(const X86Reading& code, std::size_t counter, bool address) {
    const bool exact = !address || !code.memory || slots_.contains(code.memory->address->value) ||
                       code.memory->address == counters_[counter];
    if (!exact) return unknown(counter, code.address, "the address of a counter's middle");
    out_.operands.push_back({code, counter, address, {}});
  }

  const ElfFile& file_;
  const CodeRanges& ranges_;
  std::span<const VirtAddr> counters_;
  std::map<std::uint64_t, std::size_t> slots_;                    // words of the GOT -> counter
  std::vector<std::pair<std::uint64_t, std::uint64_t>> targets_;  // [first, last) of operands
  std::vector<std::uint64_t> got_;
  std::vector<VirtAddr> fields_;        // of four bytes that may lead to a counter
  std::set<std::uint64_t> read_;        // those that were read with a function
  std::set<std::uint64_t> start_code_;  // bytes of crtstuff.c's two functions
  CounterReach out_;
};

}  // namespace

CounterReach read_counter_reach(const ElfFile& file, const CodeRanges& ranges,
                                std::span<const VirtAddr> counters) {
  return ReachFinder(file, ranges, counters).run();
}

}  // namespace reprobe
