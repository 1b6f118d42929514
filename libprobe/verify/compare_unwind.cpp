#include "libprobe/verify/compare_unwind.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <span>

#include "libprobe/code/cfi_rows.hpp"
#include "libprobe/code/unwind_index.hpp"
#include "libprobe/verify/filler.hpp"
#include "libprobe/verify/process_image.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kUnwindEnd = std::numeric_limits<std::uint64_t>::max();
// Records that are read because tables differ: a rewrite changes a few.
constexpr std::size_t kMostRead = std::size_t{1} << 20;

Finding unwind_finding(std::uint64_t at, std::string_view why) {
  Finding finding =
      verify_finding("verify-unwind", fmt::format("{:#x} unwinds in another way: {}", at, why));
  finding.site = at;
  return finding;
}

// An FDE with its rows.
struct Frame {
  CfiCie cie;
  CfiFde fde;
  CfiRows rows;
};

// The frames of one file, each read when it is first asked for; the last one is kept.
class Frames {
 public:
  explicit Frames(const ElfFile& file) : file_(file) {}

  // Nothing where the record cannot be read, or too many were.
  const CfiFde* fde(VirtAddr address) {
    if (last_ != address) {
      last_ = address;
      frame_.reset();
      fde_.reset();
      if (++read_ <= kMostRead) {
        auto found = read_fde(file_, address, cie_);
        if (found) fde_ = std::move(*found);
      }
    }
    return fde_ ? &*fde_ : nullptr;
  }

  const Frame* frame(VirtAddr address) {
    const CfiFde* found = fde(address);
    if (found == nullptr || !cie_) return nullptr;
    if (!frame_) {
      auto rows = read_rows(file_, *cie_, *found);
      if (!rows) return nullptr;
      read_ += rows->rules;
      frame_ = Frame{*cie_, *found, std::move(*rows)};
    }
    return &*frame_;
  }

 private:
  const ElfFile& file_;
  std::optional<VirtAddr> last_;
  std::optional<CfiCie> cie_;
  std::optional<CfiFde> fde_;
  std::optional<Frame> frame_;
  std::size_t read_{};
};

// What one entry of a search table covers, and the record it leads to.
struct Covered {
  std::uint64_t begin{}, end{};
  VirtAddr fde;
  bool fits{};  // the record begins where the entry says, and ends before the next one
};

class UnwindComparer {
 public:
  UnwindComparer(const ElfFile& before, const ElfFile& after, ProcessImage image,
                 std::vector<Finding>& out)
      : before_(before),
        image_(std::move(image)),
        old_frames_(before),
        new_frames_(after),
        out_(out) {}

  // Where both tables have the same entries they find the same: both were read from memory that is
  // the same. Everything between is looked up in both.
  void run(std::span<const UnwindEntry> old, std::span<const UnwindEntry> now) {
    std::size_t i = 0, j = 0;
    while (i < old.size() || j < now.size()) {
      if (same(old, i, now, j) && next_start(old, i) == next_start(now, j)) {
        ++i, ++j;
        continue;
      }
      const std::uint64_t begin = std::min(start_of(old, i), start_of(now, j));
      const std::size_t first_old = i, first_new = j;
      do {
        const std::uint64_t lower = std::min(start_of(old, i), start_of(now, j));
        while (start_of(old, i) == lower && i < old.size()) ++i;
        while (start_of(now, j) == lower && j < now.size()) ++j;
      } while ((i < old.size() || j < now.size()) && !same(old, i, now, j));
      const std::uint64_t end = std::min(start_of(old, i), start_of(now, j));
      // The entry in front reaches into the region until one begins there.
      const std::size_t from_old = first_old == 0 ? 0 : first_old - 1;
      const std::size_t from_new = first_new == 0 ? 0 : first_new - 1;
      compare_region(begin, end, cover(old.subspan(from_old, i - from_old), end, old_frames_),
                     cover(now.subspan(from_new, j - from_new), end, new_frames_));
      if (!out_.empty() && out_.back().rule == "verify-unwind") return;
    }
  }

 private:
  static std::uint64_t start_of(std::span<const UnwindEntry> entries, std::size_t i) {
    return i < entries.size() ? entries[i].start.value : kUnwindEnd;
  }
  static std::uint64_t next_start(std::span<const UnwindEntry> entries, std::size_t i) {
    return start_of(entries, i + 1);
  }
  static bool same(std::span<const UnwindEntry> old, std::size_t i,
                   std::span<const UnwindEntry> now, std::size_t j) {
    return i < old.size() && j < now.size() && old[i].start == now[j].start &&
           old[i].fde == now[j].fde;
  }

  // Binary search ends at the last entry that does not begin behind the address; its FDE's range
  // counts from the entry's start. One that cannot be read may cover everything.
  static std::vector<Covered> cover(std::span<const UnwindEntry> entries, std::uint64_t end,
                                    Frames& frames) {
    std::vector<Covered> result;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::uint64_t next = i + 1 < entries.size() ? entries[i + 1].start.value : end;
      const CfiFde* fde = frames.fde(entries[i].fde);
      const std::uint64_t size = fde == nullptr ? kUnwindEnd : fde->size.value;
      const std::uint64_t begin = entries[i].start.value;
      const std::uint64_t stop = std::min(next, checked_add(begin, size).value_or(kUnwindEnd));
      const bool fits = fde != nullptr && fde->start == entries[i].start && size <= next - begin;
      if (begin < stop) result.push_back({begin, stop, entries[i].fde, fits});
    }
    return result;
  }

  void compare_region(std::uint64_t begin, std::uint64_t end, const std::vector<Covered>& old,
                      const std::vector<Covered>& now) {
    std::vector<std::uint64_t> bounds{begin, end};
    for (const auto* list : {&old, &now}) {
      for (const Covered& piece : *list) {
        for (const std::uint64_t at : {piece.begin, piece.end}) {
          if (at > begin && at < end) bounds.push_back(at);
        }
      }
    }
    std::ranges::sort(bounds);
    auto a = old.begin();
    auto b = now.begin();
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      const std::uint64_t at = bounds[i];
      while (a != old.end() && a->end <= at) ++a;
      while (b != now.end() && b->end <= at) ++b;
      const Covered* in_a = a != old.end() && a->begin <= at ? &*a : nullptr;
      const Covered* in_b = b != now.end() && b->begin <= at ? &*b : nullptr;
      if (at != bounds[i + 1] && !compare_piece(at, bounds[i + 1], in_a, in_b)) return;
    }
  }

  // The parts of [begin, end) that the input has as code.
  bool compare_piece(std::uint64_t begin, std::uint64_t end, const Covered* old,
                     const Covered* now) {
    if (old == nullptr && now == nullptr) return true;
    if (now != nullptr && !now->fits && (old == nullptr || old->fde != now->fde)) {
      return differs(begin, "an FDE is found that begins or ends elsewhere");
    }
    const auto pieces = image_.pieces();
    auto piece = std::ranges::upper_bound(pieces, begin, {}, &MappedPiece::end);
    for (; piece != pieces.end() && piece->begin < end; ++piece) {
      if (!piece->stated || (piece->flags & PF_X) == 0) continue;
      const std::uint64_t from = std::max(begin, piece->begin), to = std::min(end, piece->end);
      if (!same_frames(from, to, old, now)) return false;
    }
    return true;
  }

  bool differs(std::uint64_t at, std::string_view why) {
    out_.push_back(unwind_finding(at, why));
    return false;
  }

  bool same_frames(std::uint64_t from, std::uint64_t to, const Covered* old, const Covered* now) {
    if (old == nullptr) {
      // Two functions that one FDE describes now: what is between them belongs to neither.
      const bool between =
          now->begin < from && now->end > to && is_filler(before_, VirtAddr{from}, VirtAddr{to});
      return between || differs(from, "an FDE is found where none was");
    }
    if (now == nullptr) return differs(from, "no FDE is found");
    if (old->fde == now->fde) return true;
    const Frame* a = old_frames_.frame(old->fde);
    const Frame* b = new_frames_.frame(now->fde);
    if (a == nullptr || b == nullptr) return differs(from, "another FDE, which cannot be read");
    // A personality without an LSDA leads on in every language.
    if (a->fde.has_lsda || b->fde.has_lsda) return differs(from, "another FDE with an LSDA");
    if (a->cie.return_register != b->cie.return_register ||
        a->cie.signal_frame != b->cie.signal_frame || a->cie.b_key != b->cie.b_key) {
      return differs(from, "another kind of frame");
    }
    if (!(a->rows.at(VirtAddr{from}) == b->rows.at(VirtAddr{from}))) {
      return differs(from, "another row");
    }
    for (const auto* rows : {&a->rows.rows, &b->rows.rows}) {
      for (const PlacedRow& row : *rows) {
        if (row.start.value <= from || row.start.value >= to) continue;
        if (!(a->rows.at(row.start) == b->rows.at(row.start))) {
          return differs(row.start.value, "another row");
        }
      }
    }
    return true;
  }

  const ElfFile& before_;
  ProcessImage image_;
  Frames old_frames_, new_frames_;
  std::vector<Finding>& out_;
};

const Segment* frame_header(const ElfFile& file) {
  const auto found = std::ranges::find(file.segments(), PT_GNU_EH_FRAME, &Segment::type);
  return found == file.segments().end() ? nullptr : &*found;
}

}  // namespace

std::optional<Range> compare_unwind(const ElfFile& before, const ElfFile& after,
                                    std::vector<Finding>& out) {
  const Segment* old_header = frame_header(before);
  const Segment* new_header = frame_header(after);
  // Who has no search table reads .eh_frame, whose bytes are compared as all others.
  if (old_header == nullptr && new_header == nullptr) return std::nullopt;
  if (old_header == nullptr || new_header == nullptr) {
    out.push_back(verify_finding("verify-unwind", "PT_GNU_EH_FRAME is new or gone"));
    return std::nullopt;
  }
  const bool stays = old_header->vaddr == new_header->vaddr;
  const auto old = read_unwind_index(before);
  auto image = ProcessImage::of(before, kSmallestPage);
  // A table that cannot be read stays as it is.
  if ((!old || !old->table) && stays) return std::nullopt;
  const auto now = read_unwind_index(after);
  if (!old || !now || !image || !now->table) {
    out.push_back(verify_finding("verify-unwind", "the unwind tables cannot be read"));
    return std::nullopt;
  }
  // What a search without the table would walk.
  if (old->eh_frame != now->eh_frame) {
    out.push_back(verify_finding(
        "verify-unwind",
        fmt::format(".eh_frame_hdr at {:#x} leads to another .eh_frame", new_header->vaddr.value)));
  }
  UnwindComparer(before, after, std::move(*image), out).run(old->entries, now->entries);
  if (!stays) return std::nullopt;
  return Range{old->table->entries.value,
               old->table->entries.value + old->entries.size() * kUnwindIndexEntry};
}

}  // namespace reprobe
