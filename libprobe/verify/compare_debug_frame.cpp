#include "libprobe/verify/compare_debug_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "libprobe/code/cfi_rows.hpp"
#include "libprobe/code/unwind_index.hpp"
#include "libprobe/verify/debug_frame_records.hpp"
#include "libprobe/verify/filler.hpp"
#include "libprobe/verify/process_image.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// Rules in all rows that are read: far more than a few hundred functions have.
constexpr std::size_t kMostRules = std::size_t{1} << 22;

class DebugFrameComparer {
 public:
  DebugFrameComparer(const ElfFile& before, const ElfFile& after, ByteView bytes,
                     ProcessImage image, std::vector<Finding>& out)
      : before_(before),
        after_(after),
        records_(bytes, after.header()),
        image_(std::move(image)),
        out_(out) {}

  void run(std::size_t from) {
    const auto bad = records_.walk(from, [&](const DebugRecord& record) {
      return !is_old_code(record.fde) || compare_record(record);
    });
    if (bad) cannot(*bad);
  }

 private:
  void cannot(std::size_t at) {
    out_.push_back(verify_finding(
        "verify-unwind", fmt::format("the record at .debug_frame+{:#x} cannot be read", at)));
  }
  bool differs(std::uint64_t at, std::string_view why) {
    Finding finding =
        verify_finding("verify-unwind", fmt::format("{:#x} unwinds in another way: {}", at, why));
    finding.site = at;
    out_.push_back(std::move(finding));
    return false;
  }

  bool compare_record(const DebugRecord& record) {
    const CfiFde& fde = record.fde;
    const auto cie = records_.read_cie(record.cie);
    const auto rows = cie ? read_rows(after_, *cie, fde) : tl::unexpected(Error{});
    if (!rows) return differs(fde.start.value, "a new record of .debug_frame cannot be read");
    rules_ += rows->rules;
    return same_rows(*cie, fde, *rows);
  }

  [[nodiscard]] bool is_old_code(const CfiFde& fde) const {
    const auto pieces = image_.pieces();
    auto piece = std::ranges::upper_bound(pieces, fde.start.value, {}, &MappedPiece::end);
    for (; piece != pieces.end(); ++piece) {
      if (piece->begin >= fde.start.value && piece->begin - fde.start.value >= fde.size.value) {
        break;
      }
      if (piece->stated) return true;
    }
    return false;
  }

  // At the start of every row that the two say of the range.
  bool same_rows(const CfiCie& cie, const CfiFde& fde, const CfiRows& rows) {
    if (!index_) index_ = read_unwind_index(before_);
    if (!*index_) return differs(fde.start.value, ".debug_frame has a new record for it");
    const auto& entries = (*index_)->entries;
    const auto end = checked_add(fde.start.value, fde.size.value);
    if (!end) return differs(fde.start.value, ".debug_frame has a record that wraps");
    auto entry = std::ranges::upper_bound(entries, fde.start, {}, &UnwindEntry::start);
    std::uint64_t at = fde.start.value;
    if (entry != entries.begin()) --entry;
    while (at < *end) {
      if (entry == entries.end() || entry->start.value > at || rules_ > kMostRules) {
        return differs(at, ".debug_frame has a new record for it");
      }
      const auto old = read_fde(before_, entry->fde, cie_);
      const auto old_rows = old ? read_rows(before_, *cie_, *old) : tl::unexpected(old.error());
      if (!old_rows) return differs(at, "its FDE cannot be read");
      rules_ += old_rows->rules + 1;
      const std::uint64_t stop = std::min(*end, old->start.value + old->size.value);
      ++entry;
      if (stop <= at) continue;
      if (cie.return_register != cie_->return_register || cie.signal_frame != cie_->signal_frame ||
          cie.b_key != cie_->b_key) {
        return differs(at, "another kind of frame in .debug_frame");
      }
      if (!same_until(at, stop, *old_rows, rows)) return false;
      at = stop;
      // What is between two functions that one record describes belongs to neither.
      if (entry == entries.end() || entry->start.value <= at || entry->start.value >= *end)
        continue;
      if (!is_filler(before_, VirtAddr{at}, entry->start)) {
        return differs(at, ".debug_frame has a new record for it");
      }
      at = entry->start.value;
    }
    return true;
  }

  bool same_until(std::uint64_t from, std::uint64_t to, const CfiRows& old, const CfiRows& now) {
    if (!(old.at(VirtAddr{from}) == now.at(VirtAddr{from}))) {
      return differs(from, "another row in .debug_frame");
    }
    for (const auto* rows : {&old.rows, &now.rows}) {
      for (const PlacedRow& row : *rows) {
        if (row.start.value <= from || row.start.value >= to) continue;
        if (!(old.at(row.start) == now.at(row.start))) {
          return differs(row.start.value, "another row in .debug_frame");
        }
      }
    }
    return true;
  }

  const ElfFile& before_;
  const ElfFile& after_;
  DebugFrameRecords records_;
  ProcessImage image_;
  std::vector<Finding>& out_;
  std::optional<Result<UnwindIndex>> index_;
  std::optional<CfiCie> cie_;
  std::size_t rules_{};
};

}  // namespace

void compare_debug_frame(const ElfFile& before, const ElfFile& after, const Section& section,
                         Size from, std::vector<Finding>& out) {
  const auto bytes = after.contents(section);
  auto image = ProcessImage::of(before, kSmallestPage);
  if (!bytes || !image || from.value > bytes->size()) {
    out.push_back(verify_finding("verify-unwind", ".debug_frame cannot be read"));
    return;
  }
  DebugFrameComparer(before, after, *bytes, std::move(*image), out)
      .run(static_cast<std::size_t>(from.value));
}

}  // namespace reprobe
