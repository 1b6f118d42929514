#include "libprobe/verify/arrivals.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "libprobe/code/flow_ranges.hpp"
#include "libprobe/verify/byte_ranges.hpp"
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

  // Bytes that look like a branch are one where a function's instructions say so.
  void scan(const Segment& segment) {
    const ByteView bytes = before_.bytes_at(segment.vaddr, segment.filesz);
    const std::uint64_t start = segment.vaddr.value;
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto byte = std::to_integer<std::uint32_t>(bytes[i]);
      word = (word >> 8) | (byte << 24);
      const std::uint64_t end = start + i + 1;
      const std::uint64_t far = end + ((std::uint64_t{word} ^ 0x80000000U) - 0x80000000U);
      const std::uint64_t near = end + ((std::uint64_t{byte} ^ 0x80U) - 0x80U);
      const bool short_one =
          i != 0 && is_short_branch(std::to_integer<unsigned>(bytes[i - 1])) && is_changed(near);
      if ((i >= 4 && is_changed(far)) || short_one) read_function(VirtAddr{end - 1});
    }
  }

  void read_function(VirtAddr holds) {
    const auto range = ranges_->find(holds);
    if (!range || range->end.value - range->start.value > CodeRanges::kLongest) return;
    if (!read_.insert(range->start).second) return;
    for (VirtAddr at = range->start; at < range->end;) {
      const auto code = read_x86(before_, at);
      // Behind what Zydis does not know the other decoder tells where to go on.
      const auto other = code ? std::nullopt : ranges_->decode_at(at);
      if (!code && !other) return;
      if (code && code->target && is_changed(code->target->value))
        found_.push_back({at, *code->target});
      at = code ? code->end() : other->end();
    }
  }

  const ElfFile& before_;
  const ElfFile& after_;
  std::optional<CodeRanges> ranges_;
  std::vector<Range> changed_;  // addresses, ascending
  std::set<VirtAddr> read_;     // starts of functions
  std::vector<ArrivingBranch> found_;
};

}  // namespace

std::vector<ArrivingBranch> find_arrivals(const ElfFile& before, const ElfFile& after) {
  return ArrivalFinder(before, after).run();
}

}  // namespace reprobe
