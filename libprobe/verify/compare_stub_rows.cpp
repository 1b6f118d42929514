#include "libprobe/verify/compare_stub_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "libprobe/code/unwind_index.hpp"
#include "libprobe/code/unwind_rows.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/verify/byte_ranges.hpp"
#include "libprobe/verify/debug_stub_frames.hpp"
#include "libprobe/verify/frame_lookup.hpp"
#include "libprobe/verify/stub_frame_bytes.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// An instruction of a stub, and one of the ways on which execution comes there.
struct StubCode {
  Executed code;
  const StandsFor* step;
};

class StubRowComparer {
 public:
  StubRowComparer(const ElfFile& before, const ElfFile& after, const Section& stubs,
                  const UnwindIndex& old, const UnwindIndex& now, std::span<const StandsFor> stands,
                  std::vector<Finding>& out)
      : before_(before),
        after_(after),
        stubs_(stubs),
        old_(old),
        now_(now),
        stands_(stands),
        old_frames_(before, old.entries),
        new_frames_(after, now.entries),
        out_(out) {
    collect();
  }

  // As unwinders find it at run time.
  void compare_loaded() {
    compare_ways();
    compare_rows([this](VirtAddr at) { return new_frames_.find(at); });
    compare_entries();
  }

  // As debuggers find it.
  void compare_debug(const DebugStubFrames& frames) {
    compare_rows([&](VirtAddr at) { return frames.find(at); });
    std::uint64_t last = 0;
    for (const FoundFrame& frame : frames.all()) {
      const std::uint64_t begin = frame.fde.start.value, end = begin + frame.fde.size.value;
      const auto code = std::ranges::upper_bound(ranges_, begin, {}, &Range::end);
      if (begin < last || end <= begin || code == ranges_.end() || code->begin > begin ||
          code->end < end) {
        return differs(frame.fde.start,
                       "its record in .debug_frame covers other code than a stub's");
      }
      last = end;
    }
  }

 private:
  using Find = std::function<const FoundFrame*(VirtAddr)>;

  void compare_rows(const Find& find) {
    for (auto it = code_.begin(); it != code_.end();) {
      const auto next = std::ranges::upper_bound(it, code_.end(), it->code.begin, {}, begin_of);
      const auto proven = [&](const StubCode& code) { return same_rows(code, find); };
      if (std::none_of(it, next, proven))
        return differs(it->code.begin, "a stub has another row than what it stands for");
      it = next;
    }
  }

  static VirtAddr begin_of(const StubCode& code) { return code.code.begin; }

  void differs(VirtAddr at, std::string_view why) {
    Finding finding = verify_finding(
        "verify-unwind", fmt::format("{:#x} unwinds in another way: {}", at.value, why));
    finding.site = at.value;
    out_.push_back(std::move(finding));
  }

  [[nodiscard]] bool in_stubs(VirtAddr at) const {
    return in_range(at.value, stubs_.addr.value, stubs_.size.value);
  }

  void collect() {
    for (const StandsFor& step : stands_) {
      for (const Executed& code : step.now) {
        if (in_stubs(code.begin)) code_.push_back({code, &step});
      }
    }
    std::ranges::stable_sort(code_, {}, begin_of);
    for (const StubCode& code : code_) {
      const auto [begin, end] = std::pair(code.code.begin.value, code.code.end.value);
      if (ranges_.empty() || ranges_.back().end < begin) ranges_.push_back({begin, end});
      ranges_.back().end = std::max(ranges_.back().end, end);
    }
  }

  // What leads to the stubs from the original's code, a jump in filler among it: its row is that of
  // the place that execution comes from, wherever the way goes.
  void compare_ways() {
    std::map<VirtAddr, bool> proven;
    for (const StandsFor& step : stands_) {
      for (const Executed& code : step.now) {
        if (in_stubs(code.begin) || is_unchanged(code)) continue;
        bool& done = proven.try_emplace(code.begin, false).first->second;
        done = done || std::ranges::any_of(step.old, [&](VirtAddr old) {
                 return row_of(old_frames_, old) == row_of(new_frames_, code.begin);
               });
      }
    }
    for (const auto& [at, done] : proven) {
      if (!done) return differs(at, "the way to a stub has another row than where it begins");
    }
  }

  [[nodiscard]] bool is_unchanged(const Executed& code) const {
    const Size size{code.end.value - code.begin.value};
    return std::ranges::equal(before_.bytes_at(code.begin, size),
                              after_.bytes_at(code.begin, size));
  }

  static std::optional<CfiRow> row_of(FrameLookup& frames, VirtAddr at) {
    const FoundFrame* frame = frames.find(at);
    return frame == nullptr ? std::nullopt : std::optional(frame->rows.at(at));
  }

  // At any place of the original where the registers are the same.
  bool same_rows(const StubCode& code, const Find& find) {
    return std::ranges::any_of(code.step->old,
                               [&](VirtAddr old) { return same_row(code.code, old, find); });
  }

  bool same_row(const Executed& code, VirtAddr old, const Find& find) {
    const FoundFrame* a = old_frames_.find(old);
    const FoundFrame* b = find(code.begin);
    if (old_frames_.failed() || new_frames_.failed()) return false;
    if (a == nullptr || b == nullptr) return a == b;
    const std::uint64_t end = b->fde.start.value + b->fde.size.value;
    if (code.end.value > end || !same_frame_kind(a->cie, b->cie)) return false;
    const auto expected = moved_row(a->rows.at(old), code.lower, after_.header());
    if (!expected || !(b->rows.at(code.begin) == *expected)) return false;
    // No other row begins inside of the instruction.
    return std::ranges::all_of(b->rows.rows, [&](const PlacedRow& row) {
      return row.start <= code.begin || row.start >= code.end || row.row == *expected;
    });
  }

  // The entries that the original lacks lead to the records of the new section, each to its own.
  void compare_entries() {
    std::set<VirtAddr> old_records;
    for (const UnwindEntry& entry : old_.entries) old_records.insert(entry.fde);
    std::vector<UnwindEntry> added;
    for (const UnwindEntry& entry : now_.entries) {
      if (old_records.contains(entry.fde)) continue;
      added.push_back(entry);
      starts_.insert(entry.start);
    }
    for (const UnwindEntry& entry : added) {
      const FoundFrame* frame = new_frames_.read(entry.fde);
      if (frame == nullptr || frame->fde.start != entry.start || frame->fde.has_lsda)
        return differs(entry.start, "its new FDE does not fit");
      const auto end = checked_add(entry.start.value, frame->fde.size.value);
      if (!end || !(in_stubs(entry.start) ? covers_stubs(frame->fde.start.value, *end, *frame)
                                          : covers_functions(entry.start, VirtAddr{*end}))) {
        return differs(entry.start, "its new FDE covers more or less than what it describes");
      }
    }
    for (const std::string& why : check_stub_frames(before_, after_, now_, added)) {
      out_.push_back(verify_finding("verify-unwind", why));
    }
  }

  // From the start of one function to the end of another: what is between is compared by
  // compare_unwind().
  bool covers_functions(VirtAddr begin, VirtAddr end) {
    const FoundFrame* first = old_frames_.find(begin);
    const FoundFrame* last = old_frames_.find(VirtAddr{end.value - 1});
    return first != nullptr && last != nullptr && first->fde.start == begin &&
           last->fde.start.value + last->fde.size.value == end.value;
  }

  // Code of stubs, and what aligns them: it goes on with the row before, or has no return address.
  // It ends with the code of a stub, or where the next record begins.
  bool covers_stubs(std::uint64_t begin, std::uint64_t end, const FoundFrame& frame) const {
    auto next = std::ranges::upper_bound(ranges_, begin, {}, &Range::end);
    if (next == ranges_.end() || next->begin > begin) return false;
    for (;; ++next) {
      const std::uint64_t at = next->end;
      if (at >= end) return at == end || begins_here(VirtAddr{end});
      const auto behind = std::next(next);
      const std::uint64_t code = behind == ranges_.end() ? end : std::min(behind->begin, end);
      if (!is_padding(at, code, frame)) return false;
      if (code == end) return begins_here(VirtAddr{end});
    }
  }

  // Another record, or a stub of code that has none.
  [[nodiscard]] bool begins_here(VirtAddr at) const {
    return starts_.contains(at) || std::ranges::binary_search(code_, at, {}, begin_of);
  }

  [[nodiscard]] bool is_padding(std::uint64_t from, std::uint64_t to,
                                const FoundFrame& frame) const {
    const CfiRow& before = frame.rows.at(VirtAddr{from - 1});
    CfiRow none = frame.rows.initial;
    none.registers[frame.cie.return_register] = {RegisterRule::Kind::undefined};
    const CfiRow& row = frame.rows.at(VirtAddr{from});
    if (!(row == before) && !(row == none)) return false;
    return std::ranges::all_of(frame.rows.rows, [&](const PlacedRow& placed) {
      return placed.start.value <= from || placed.start.value >= to || placed.row == row;
    });
  }

  const ElfFile& before_;
  const ElfFile& after_;
  const Section& stubs_;
  const UnwindIndex& old_;
  const UnwindIndex& now_;
  std::span<const StandsFor> stands_;
  FrameLookup old_frames_, new_frames_;
  std::vector<StubCode> code_;  // ascending
  std::vector<Range> ranges_;   // what it covers, as addresses
  std::set<VirtAddr> starts_;   // of what the new records describe
  std::vector<Finding>& out_;
};

}  // namespace

void compare_stub_rows(const ElfFile& before, const ElfFile& after,
                       std::span<const StandsFor> stands, std::vector<Finding>& out) {
  const Section* stubs = after.section(kSledSection);
  if (stubs == nullptr || before.section(kSledSection) != nullptr) return;
  const auto old = read_unwind_index(before);
  const auto now = read_unwind_index(after);
  if (!old || !now) {
    out.push_back(verify_finding("verify-unwind", "the unwind tables cannot be read"));
    return;
  }
  StubRowComparer comparer(before, after, *stubs, *old, *now, stands, out);
  comparer.compare_debug(DebugStubFrames(before, after, *stubs, out));
  // Nobody finds an entry at run time, and no table is written: in a dynamic program without a
  // table, and in a static one whose start-up code registers its own records alone.
  if (old->found != UnwindIndex::Found::not_at_all &&
      now->found != UnwindIndex::Found::by_registration) {
    comparer.compare_loaded();
  }
}

}  // namespace reprobe
