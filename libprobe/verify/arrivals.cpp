#include "libprobe/verify/arrivals.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/verify/byte_ranges.hpp"
#include "libprobe/verify/changed_returns.hpp"
#include "libprobe/verify/x86_reading.hpp"

namespace reprobe {
namespace {

// Segments of a sane file do not overlap.
constexpr std::uint64_t kArrivalPasses = 4;

// Opcodes of branches with a displacement of one byte: jcc, loop and jrcxz, jmp.
constexpr bool is_short_branch(unsigned opcode) {
  return (opcode >= 0x70 && opcode <= 0x7f) || (opcode >= 0xe0 && opcode <= 0xe3) || opcode == 0xeb;
}

class ArrivalFinder {
 public:
  ArrivalFinder(const ElfFile& before, const ElfFile& after) : before_(before), after_(after) {}

  std::vector<ArrivingBranch> run() {
    std::uint64_t budget = before_.source().size() * kArrivalPasses;
    std::vector<const Segment*> code;
    for (const Segment& segment : before_.segments()) {
      const bool runs = segment.type == PT_LOAD && (segment.flags & PF_X) != 0;
      if (!runs || segment.filesz.value > budget) continue;
      budget -= segment.filesz.value;
      code.push_back(&segment);
    }
    for (const Segment* segment : code) add_changes(*segment);
    std::ranges::sort(changed_, {}, &Range::begin);
    ranges_ = CodeRanges::open(before_);
    if (changed_.empty() || !ranges_) return {};
    for (const Segment* segment : code) scan(*segment);
    return std::move(found_);
  }

 private:
  void add_changes(const Segment& segment) {
    const ByteView old = before_.bytes_at(segment.vaddr, segment.filesz);
    const ByteView now = after_.bytes_at(segment.vaddr, segment.filesz);
    const std::size_t common = std::min(old.size(), now.size());
    for (std::size_t i = 0; i < common;) {
      const auto differs = std::mismatch(old.begin() + static_cast<std::ptrdiff_t>(i),
                                         old.begin() + static_cast<std::ptrdiff_t>(common),
                                         now.begin() + static_cast<std::ptrdiff_t>(i));
      i = static_cast<std::size_t>(differs.first - old.begin());
      const std::size_t begin = i;
      while (i < common && old[i] != now[i]) ++i;
      if (i == begin) continue;
      // Of the instruction that changed, bytes at both ends may happen to be the same.
      const std::uint64_t first = segment.vaddr.value + begin;
      changed_.push_back({first - std::min(first, kLongestReading.value - 1),
                          segment.vaddr.value + i + kLongestReading.value - 1});
    }
  }

  [[nodiscard]] bool is_changed(std::uint64_t address) const {
    if (address < changed_.front().begin || address >= changed_.back().end) return false;
    const auto after = std::ranges::upper_bound(changed_, address, {}, &Range::begin);
    // All are equally wide at their ends: the last that begins before it ends last.
    return after != changed_.begin() && address < std::prev(after)->end;
  }

  // A field that leads to changed code, by its end, if it belongs to the instruction that has it.
  struct Field {
    VirtAddr end;
    VirtAddr target;
    unsigned width{};
  };

  void scan(const Segment& segment) {
    const ByteView bytes = before_.bytes_at(segment.vaddr, segment.filesz);
    const std::uint64_t start = segment.vaddr.value;
    const bool fixed = before_.header().type == ET_EXEC;
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto byte = std::to_integer<std::uint32_t>(bytes[i]);
      word = (word >> 8) | (byte << 24);
      const std::uint64_t end = start + i + 1;
      const std::uint64_t far = end + ((std::uint64_t{word} ^ 0x80000000U) - 0x80000000U);
      const std::uint64_t near = end + ((std::uint64_t{byte} ^ 0x80U) - 0x80U);
      const bool short_one =
          i != 0 && is_short_branch(std::to_integer<unsigned>(bytes[i - 1])) && is_changed(near);
      if (short_one) add_field({VirtAddr{end}, VirtAddr{near}, 1});
      if (i >= 4 && is_changed(far)) add_field({VirtAddr{end}, VirtAddr{far}, 4});
      if (i >= 4 && fixed && is_changed(word)) add_field({VirtAddr{end}, VirtAddr{word}, 4});
    }
    read_function();
  }

  // Fields come by address: those of one function follow each other.
  void add_field(const Field& field) {
    const VirtAddr holds{field.end.value - 1};
    if (!fields_.empty() && !range_.contains(holds)) read_function();
    if (fields_.empty()) {
      const auto range = ranges_->find(holds);
      if (!range || range->end.value - range->start.value > CodeRanges::kLongest) return;
      range_ = *range;
    }
    fields_.push_back(field);
  }

  void read_function() {
    const std::vector<Field> fields = std::exchange(fields_, {});
    if (fields.empty()) return;
    std::vector<X86Reading> code;
    for (VirtAddr at = range_.start; at < range_.end;) {
      const auto reading = read_x86(before_, at);
      // Behind what Zydis does not know the other decoder tells where to go on.
      const auto other = reading ? std::nullopt : ranges_->decode_at(at);
      if (!reading && !other) break;
      if (reading) code.push_back(*reading);
      at = reading ? reading->end() : other->end();
    }
    const std::vector<bool> sure = surely_read(code);
    for (const Field& field : fields) {
      const auto holder = holder_of(code, VirtAddr{field.end.value - 1});
      if (holder && leads_there(code[*holder], field)) {
        found_.push_back({code[*holder].address, field.target, true});
      } else {
        add_unsure(field, code, sure);
      }
    }
  }

  // The instruction that has the byte, by index.
  static std::optional<std::size_t> holder_of(const std::vector<X86Reading>& code, VirtAddr byte) {
    const auto after = std::ranges::upper_bound(code, byte, {}, &X86Reading::address);
    if (after == code.begin() || byte >= std::prev(after)->end()) return std::nullopt;
    return static_cast<std::size_t>(std::prev(after) - code.begin());
  }

  static bool leads_there(const X86Reading& code, const Field& field) {
    if (code.target == field.target) return true;
    if (code.operation == Operation::lea && code.memory && code.memory->address == field.target)
      return true;
    const auto immediate = code.immediate();
    return !code.target && immediate &&
           static_cast<std::uint64_t>(*immediate) == field.target.value;
  }

  // The instructions to which execution comes without passing the end of a block, from the start or
  // from where a branch leads to.
  std::vector<bool> surely_read(const std::vector<X86Reading>& code) {
    std::set<VirtAddr> targets;
    for (const X86Reading& reading : code) {
      if (reading.target) targets.insert(*reading.target);
    }
    std::vector<bool> sure(code.size());
    bool on = true;
    for (std::size_t i = 0; i < code.size(); ++i) {
      const bool gap = i != 0 && code[i - 1].end() != code[i].address;
      on = (on && !gap) || targets.contains(code[i].address);
      sure[i] = on;
      const bool elsewhere =
          code[i].flow == ReadFlow::call && code[i].target && changes_its_return(*code[i].target);
      if (code[i].ends_block() || elsewhere) on = false;
    }
    return sure;
  }

  bool changes_its_return(VirtAddr callee) {
    const auto known = callees_.find(callee);
    if (known != callees_.end()) return known->second;
    return callees_[callee] = reprobe::changes_its_return(before_, *ranges_, callee);
  }

  // An instruction that ends with the field and leads there, if it may begin where it would.
  void add_unsure(const Field& field, const std::vector<X86Reading>& code,
                  const std::vector<bool>& sure) {
    constexpr std::uint64_t kOpcode = 2;  // what stands before it are prefixes
    for (std::uint64_t before = 1; before <= kOpcode; ++before) {
      const VirtAddr at{field.end.value - field.width - before};
      const auto read = read_x86(before_, at);
      if (!read || read->end() != field.end || !leads_there(*read, field)) continue;
      // In front of the function it would begin in another one.
      const auto holder = holder_of(code, at);
      if (at >= range_.start && (!holder || !sure[*holder]))
        return found_.push_back({at, field.target, false});
    }
  }

  const ElfFile& before_;
  const ElfFile& after_;
  std::optional<CodeRanges> ranges_;
  std::vector<Range> changed_;  // addresses, ascending
  CodeRange range_;             // the function that holds `fields_`
  std::vector<Field> fields_;
  std::map<VirtAddr, bool> callees_;  // functions, and whether they return elsewhere
  std::vector<ArrivingBranch> found_;
};

}  // namespace

std::vector<ArrivingBranch> find_arrivals(const ElfFile& before, const ElfFile& after) {
  return ArrivalFinder(before, after).run();
}

}  // namespace reprobe
