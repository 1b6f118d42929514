#include "libprobe/code/jump_table.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

#include "libprobe/code/jump_table_bound.hpp"
#include "libprobe/code/value_origin.hpp"

namespace reprobe {
namespace {

using OriginKind = ValueOrigin::Kind;

// Words in a table that follow each other and are no cases: indices that are never used. More would
// read on into the tables behind it.
constexpr unsigned kMostUnused = 2;
constexpr std::size_t kEntry = 4;  // bytes: GCC and LLVM write 32-bit entries
// Of all tables of one piece together.
constexpr std::uint64_t kMostEntries = std::uint64_t{1} << 17;
// Tables that are tried where it is not known which one is read.
constexpr std::size_t kMostCandidates = 4096;

struct Table {
  VirtAddr entries;  // where they stand
  VirtAddr base;     // what they are relative to
};

// Addresses that origins agree on; nothing where one is not a constant.
std::optional<std::vector<VirtAddr>> constants(std::span<const ValueOrigin> origins) {
  std::vector<VirtAddr> addresses;
  for (const ValueOrigin& origin : origins) {
    if (origin.kind != OriginKind::constant) return std::nullopt;
    addresses.push_back(origin.address);
  }
  if (addresses.empty()) return std::nullopt;
  return addresses;
}

bool all_of_kind(std::span<const ValueOrigin> origins, OriginKind kind) {
  return !origins.empty() &&
         std::ranges::all_of(origins, [&](const ValueOrigin& o) { return o.kind == kind; });
}

class Follower {
 public:
  explicit Follower(const CodePiece& piece)
      : piece_(piece), absolute_(piece.file->header().type == ET_EXEC), finder_(piece) {
    for (const CodeInstruction& code : piece.code) take_addresses(code);
    for (auto* addresses : {&labels_, &data_}) {
      std::ranges::sort(*addresses);
      addresses->erase(std::unique(addresses->begin(), addresses->end()), addresses->end());
    }
  }

  IndirectJumps run() {
    for (std::size_t i = 0; i < piece_.code.size(); ++i) {
      const CodeInstruction& code = piece_.code[i];
      if (code.kind != InstructionKind::indirect_jump) continue;
      jump_ = code.address;
      if (!follow(i)) out_.not_understood.push_back(code.address);
    }
    for (const StackJump& jump : piece_.stack_jumps) {
      jump_ = piece_.code[jump.at].address;
      const bool known = jump.reg && follow_register(jump.read_at, *jump.reg);
      if (!known) out_.not_understood.push_back(jump_);
    }
    const bool takes_labels = takes_base_ || !labels_.empty();
    if (takes_labels || piece_.labels_in_data) out_.adds_to_loaded = adds_to_loaded();
    out_.adds_to_labels = computes_labels_ || (takes_labels && out_.adds_to_loaded);
    return std::move(out_);
  }

 private:
  // The function itself: its address may be a base as a label's is.
  [[nodiscard]] bool is_base(VirtAddr address) const {
    return std::ranges::any_of(piece_.parts,
                               [&](const CodeRange& part) { return part.contains(address); });
  }
  // Inside a part of the function, not at its start: that is the function's address.
  [[nodiscard]] bool is_label(VirtAddr address) const {
    return std::ranges::any_of(piece_.parts, [&](const CodeRange& part) {
      return part.contains(address) && address != part.start;
    });
  }

  void take_addresses(const CodeInstruction& code) {
    if (code.is_lea() && code.rip_target) {
      (is_label(*code.rip_target) ? labels_ : data_).push_back(*code.rip_target);
      takes_base_ = takes_base_ || is_base(*code.rip_target);
    }
    if (!absolute_) return;
    const X86Encoding& e = code.encoding;
    const auto label = [&](std::int64_t value) {
      return is_label(VirtAddr{static_cast<std::uint64_t>(value)});
    };
    if (code.immediate && label(*code.immediate)) {
      const bool moves = e.map == OpcodeMap::one_byte &&
                         (e.opcode == 0xc7 || (e.opcode >= 0xb8 && e.opcode <= 0xbf));
      if (moves) labels_.push_back(VirtAddr{static_cast<std::uint64_t>(*code.immediate)});
      if (!moves) computes_labels_ = true;
    }
    if (code.is_lea() && code.memory && label(code.memory->displacement)) computes_labels_ = true;
  }

  bool follow(std::size_t at) {
    const CodeInstruction& code = piece_.code[at];
    const bool far = (code.encoding.reg & 7) == 5;
    if (code.opaque || far || code.encoding.operand16) return false;
    if (code.memory) {
      take_pointer(at);
      return true;
    }
    return follow_register(at, code.encoding.rm);
  }

  // The instruction reads the address from memory: from a table, or from where nobody knows.
  void take_pointer(std::size_t at) {
    if (const auto& memory = piece_.code[at].memory; memory && at != 0)
      jump_loads_.push_back(*memory);
    // A pointer that a caller passes counts as one from the first instruction.
    const auto places = at == 0 ? std::nullopt : places_of(at);
    if (!places) return out_.through_memory.push_back(jump_);
    out_.pointer_tables.insert(out_.pointer_tables.end(), places->begin(), places->end());
    // It may have been written to since the program started.
    const bool constant = std::ranges::all_of(*places, [&](VirtAddr place) {
      const Section* section = piece_.file->section_containing(place);
      const bool relro = section != nullptr && section->name.starts_with(".data.rel.ro");
      return section != nullptr && ((section->flags & SHF_WRITE) == 0 || relro);
    });
    if (!constant) out_.through_memory.push_back(jump_);
  }

  bool follow_register(std::size_t at, unsigned reg) {
    for (const ValueOrigin& origin : finder_.origins(at, reg)) {
      switch (origin.kind) {
        case OriginKind::constant:
          break;
        case OriginKind::pointer:
          take_pointer(origin.at);
          break;
        case OriginKind::sum:
          if (!follow_sum(origin.at)) return false;
          break;
        case OriginKind::load32:  // an address, where those have 32 bits
          if (!absolute_) return false;
          break;
        case OriginKind::unknown:
          return false;
      }
    }
    return true;
  }

  // Is there a sum of which one part is or may be an address of the function?
  bool adds_to_loaded() {
    for (std::size_t i = 0; i < piece_.code.size(); ++i) {
      if (adds_in_memory(piece_.code[i]) || adds_to_jumped(i)) return true;
      const auto operands = sum_operands(piece_.code[i]);
      if (!operands) continue;
      for (const unsigned reg : {operands->first, operands->second}) {
        for (const ValueOrigin& origin : finder_.origins(i, reg)) {
          const bool label = origin.kind == OriginKind::constant && is_base(origin.address);
          // What was loaded may be a label that was stored: at -O0 every variable is.
          const bool loaded = origin.kind == OriginKind::pointer && origin.at != 0;
          if (label || loaded || origin.kind == OriginKind::unknown) return true;
        }
      }
    }
    return false;
  }

  // add, sub of eight bytes with an operand in memory.
  [[nodiscard]] static bool adds_in_memory(const CodeInstruction& code) {
    const X86Encoding& e = code.encoding;
    if (code.opaque || e.map != OpcodeMap::one_byte || !e.rex_w || !e.is_memory()) return false;
    return e.opcode == 0x01 || e.opcode == 0x03 || e.opcode == 0x29 || e.opcode == 0x2b;
  }
  // Is a constant added to a label, or to what stands where a jump of the function loads its
  // target? Others are added to all pointers, at -O0 in memory.
  bool adds_to_jumped(std::size_t at) {
    const CodeInstruction& code = piece_.code[at];
    const X86Encoding& e = code.encoding;
    if (code.opaque || e.map != OpcodeMap::one_byte || !e.rex_w) return false;
    const bool lea = e.opcode == 0x8d && e.base && !e.index && !code.rip_target;
    if (!lea && !adds_constant(e)) return false;
    if (!lea && e.is_memory()) return is_jumped_through(*code.memory);
    const auto origins = finder_.origins(at, lea ? *e.base : e.rm);
    return std::ranges::any_of(origins, [&](const ValueOrigin& origin) {
      if (origin.kind == OriginKind::constant) return is_label(origin.address);
      const auto& memory = piece_.code[origin.at].memory;
      return origin.kind == OriginKind::pointer && origin.at != 0 && memory &&
             is_jumped_through(*memory);
    });
  }
  [[nodiscard]] bool is_jumped_through(const MemoryOperand& memory) const {
    return std::ranges::any_of(jump_loads_, [&](const MemoryOperand& load) {
      return load.base == memory.base && load.index == memory.index && load.scale == memory.scale &&
             load.displacement == memory.displacement && load.rip_relative == memory.rip_relative &&
             load.segment == memory.segment;
    });
  }

  // add, or, adc, sbb, and, sub, xor with an immediate; inc, dec.
  [[nodiscard]] static bool adds_constant(const X86Encoding& e) {
    const unsigned digit = e.reg & 7;
    return ((e.opcode == 0x81 || e.opcode == 0x83) && digit != 7) ||
           (e.opcode == 0xff && digit < 2);
  }

  [[nodiscard]] static std::optional<std::pair<unsigned, unsigned>> sum_operands(
      const CodeInstruction& code) {
    const X86Encoding& e = code.encoding;
    if (code.opaque || e.map != OpcodeMap::one_byte || !e.rex_w) return std::nullopt;
    if ((e.opcode == 0x01 || e.opcode == 0x03 || e.opcode == 0x29 || e.opcode == 0x2b) &&
        e.mod == 3)
      return std::pair{e.reg, e.rm};
    if (e.opcode == 0x8d && e.base && e.index) return std::pair{*e.base, *e.index};
    return std::nullopt;
  }

  bool follow_sum(std::size_t at) {
    const auto operands = sum_operands(piece_.code[at]);
    if (!operands) return false;
    auto words = finder_.origins(at, operands->first);
    auto bases = finder_.origins(at, operands->second);
    if (!all_of_kind(words, OriginKind::load32)) std::swap(words, bases);
    if (!all_of_kind(words, OriginKind::load32)) return false;
    const auto known_bases = constants(bases);
    for (const ValueOrigin& word : words) {
      const auto places = places_of(word.at);
      const bool one_load = words.size() == 1;
      if (!read_tables(word.at, places, known_bases, one_load)) return false;
    }
    return true;
  }

  // Where the table stands that the instruction reads; nothing where that is not known.
  std::optional<std::vector<VirtAddr>> places_of(std::size_t load) {
    const CodeInstruction& code = piece_.code[load];
    if (!code.memory || code.memory->segment || code.kind == InstructionKind::call ||
        code.kind == InstructionKind::indirect_call)
      return std::nullopt;
    const MemoryOperand& memory = *code.memory;
    const auto displacement = static_cast<std::uint64_t>(memory.displacement);
    if (memory.rip_relative) return std::vector{*code.rip_target};
    if (!memory.base) return std::vector{VirtAddr{displacement}};
    auto places = constants(finder_.origins(load, *memory.base));
    if (!places && memory.index && memory.scale == 1)
      places = constants(finder_.origins(load, *memory.index));
    if (places)
      for (VirtAddr& place : *places) place.value += displacement;
    return places;
  }

  bool read_tables(std::size_t load, const std::optional<std::vector<VirtAddr>>& places,
                   const std::optional<std::vector<VirtAddr>>& bases, bool one_load) {
    if (places && bases) {
      const auto bound = one_load && places->size() == 1 && bases->size() == 1
                             ? table_bound(piece_, finder_, load)
                             : std::nullopt;
      for (const VirtAddr place : *places)
        for (const VirtAddr base : *bases)
          if (read_table({place, base}, bound) == 0) return false;
      return true;
    }
    // What is not known was kept in memory for a while. A table is relative to its own start,
    // unless it holds differences from a label.
    if (!places && !bases) return labels_.empty() && try_tables(data_);
    if (!labels_.empty()) return false;
    return try_tables(places ? *places : *bases);
  }

  // One of them is the table; none is worse than not a table.
  bool try_tables(const std::vector<VirtAddr>& candidates) {
    if (candidates.size() > kMostCandidates) return false;
    std::uint64_t entries = 0;
    for (const VirtAddr candidate : candidates) entries += read_table({candidate, candidate}, {});
    return entries != 0;
  }

  [[nodiscard]] bool executable(VirtAddr address) const {
    const Segment* segment = piece_.file->load_segment(address);
    return segment != nullptr && (segment->flags & PF_X) != 0;
  }

  // The number of entries that lead to code; 0 where it is no table. Without a bound, entries are
  // read on both sides of where it is said to stand, as long as they may be cases: what is read too
  // much costs no correctness.
  std::uint64_t read_table(const Table& table, std::optional<std::uint64_t> bound) {
    return bound ? read_bounded(table, *bound) : read_unbounded(table);
  }

  [[nodiscard]] VirtAddr target_of(const Table& table, ByteView bytes, std::size_t at) const {
    const std::uint64_t word = load_uint(bytes, at, kEntry, std::endian::little);
    return VirtAddr{table.base.value + ((word ^ 0x80000000U) - 0x80000000U)};
  }

  std::uint64_t read_bounded(const Table& table, std::uint64_t count) {
    const ByteView bytes = piece_.file->bytes_at(table.entries, Size{count * kEntry});
    if (bytes.size() < count * kEntry) return 0;
    std::uint64_t found = 0;
    for (std::size_t i = 0; i + kEntry <= bytes.size(); i += kEntry) {
      const VirtAddr target = target_of(table, bytes, i);
      if (!executable(target)) continue;  // an entry that is never used
      if (!add_target(target, found)) return 0;
    }
    out_.tables.push_back({table.entries, VirtAddr{table.entries.value + count * kEntry}});
    return found;
  }

  bool add_target(VirtAddr target, std::uint64_t& found) {
    if (++found > kMostTableEntries || out_.targets.size() >= kMostEntries) return false;
    out_.targets.push_back({target, jump_});
    return true;
  }

  std::uint64_t read_unbounded(const Table& table) {
    // Its first entry has to be one.
    if (!may_be_entry(table, table.entries)) return 0;
    // What else the code takes the address of is something else.
    const auto next = std::ranges::upper_bound(data_, table.entries);
    const auto here = std::ranges::lower_bound(data_, table.entries);
    const std::uint64_t last = next == data_.end() ? ~std::uint64_t{0} - kEntry : next->value;
    const std::uint64_t first = here == data_.begin() ? kEntry : std::prev(here)->value + kEntry;
    std::uint64_t found = 0;
    VirtAddr low = table.entries, high = table.entries;
    unsigned others = 0;  // that follow each other and are no cases
    for (VirtAddr at = low; others <= kMostUnused && at.value < last; at.value += kEntry) {
      const auto target = may_be_entry(table, at);
      others = target ? 0 : others + 1;
      if (target && !add_target(*target, found)) return 0;
      if (target) high = VirtAddr{at.value + kEntry};
    }
    while (low.value >= first) {
      const VirtAddr at{low.value - kEntry};
      const auto target = may_be_entry(table, at);
      if (!target) break;
      if (!add_target(*target, found)) return 0;
      low = at;
    }
    out_.tables.push_back({low, high});
    return found;
  }

  [[nodiscard]] std::optional<VirtAddr> may_be_entry(const Table& table, VirtAddr at) const {
    const ByteView bytes = piece_.file->bytes_at(at, Size{kEntry});
    if (bytes.size() < kEntry) return std::nullopt;
    const VirtAddr target = target_of(table, bytes, 0);
    if (!executable(target) || !piece_.may_be_case(target)) return std::nullopt;
    return target;
  }

  const CodePiece& piece_;
  bool absolute_;  // addresses may be immediates
  OriginFinder finder_;
  std::vector<VirtAddr> labels_;           // labels whose address is taken
  std::vector<VirtAddr> data_;             // all other addresses that a lea takes
  std::vector<MemoryOperand> jump_loads_;  // where jumps load their targets
  bool takes_base_{};                      // an address of the function is taken with lea
  bool computes_labels_{};
  IndirectJumps out_;
  VirtAddr jump_;
};

}  // namespace

IndirectJumps follow_indirect_jumps(const CodePiece& piece) { return Follower(piece).run(); }

}  // namespace reprobe
