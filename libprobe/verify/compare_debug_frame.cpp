#include "libprobe/verify/compare_debug_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "libprobe/code/cfi_rows.hpp"
#include "libprobe/code/unwind_index.hpp"
#include "libprobe/verify/filler.hpp"
#include "libprobe/verify/process_image.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// DWARF 4, 6.4.1: the id of a CIE in the 32-bit format.
constexpr std::uint64_t kCieId = 0xffffffff;

// Rules in all rows that are read: far more than a few hundred functions have.
constexpr std::size_t kMostRules = std::size_t{1} << 22;

class DebugFrameComparer {
 public:
  DebugFrameComparer(const ElfFile& before, const ElfFile& after, ByteView bytes,
                     ProcessImage image, std::vector<Finding>& out)
      : before_(before), after_(after), bytes_(bytes), image_(std::move(image)), out_(out) {}

  void run(std::size_t from) {
    const unsigned word = before_.header().word();
    while (from < bytes_.size()) {
      if (bytes_.size() - from < 4) return cannot(from);
      const std::uint64_t length = field(from, 4);
      const std::size_t at = from;
      from += 4;
      if (length == 0) continue;  // padding
      if (length > bytes_.size() - from || length < 4) return cannot(at);
      const std::size_t next = from + static_cast<std::size_t>(length);
      const bool is_cie = field(from, 4) == kCieId;
      if (!is_cie && length < 4 + 2 * word) return cannot(at);
      if (!is_cie && !compare_record(from, next)) return;
      from = next;
    }
  }

 private:
  [[nodiscard]] std::uint64_t field(std::size_t at, unsigned width) const {
    return load_uint(bytes_, at, width, before_.header().order);
  }

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

  // An FDE: its CIE's offset, the start, the size, and the program.
  bool compare_record(std::size_t at, std::size_t end) {
    const unsigned word = before_.header().word();
    CfiFde fde;
    fde.start = VirtAddr{field(at + 4, word)};
    fde.size = Size{field(at + 4 + word, word)};
    fde.program = {bytes_.subspan(at + 4 + 2 * word, end - at - 4 - 2 * word), VirtAddr{}};
    if (!is_old_code(fde)) return true;
    const auto cie = read_cie(field(at, 4));
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

  // DWARF 4, 6.4.1, without augmentation, as debuggers alone read it.
  std::optional<CfiCie> read_cie(std::uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < 9) return std::nullopt;
    const auto at = static_cast<std::size_t>(offset);
    const std::uint64_t length = field(at, 4);
    if (length < 5 || length > bytes_.size() - at - 4 || field(at + 4, 4) != kCieId) {
      return std::nullopt;
    }
    FrameCursor cursor(bytes_.subspan(at + 8, static_cast<std::size_t>(length) - 4), VirtAddr{},
                       before_.header());
    CfiCie cie;
    const auto version = cursor.fixed(1);
    const auto augmentation = version ? cursor.augmentation() : std::nullopt;
    if (!augmentation || (*version != 1 && *version != 3)) return std::nullopt;
    const auto code_alignment = cursor.uleb128();
    const auto data_alignment = code_alignment ? cursor.sleb128() : std::nullopt;
    const auto return_register = !data_alignment ? std::nullopt
                                 : *version == 1 ? cursor.fixed(1)
                                                 : cursor.uleb128();
    if (!return_register || *code_alignment == 0 || *code_alignment > 0xff) return std::nullopt;
    if (!augmentation->empty()) {
      const auto size = augmentation->front() == 'z' ? cursor.uleb128() : std::nullopt;
      if (augmentation->find_first_not_of("zSB") != std::string::npos || !size ||
          !cursor.skip(*size)) {
        return std::nullopt;
      }
    }
    cie.signal_frame = augmentation->find('S') != std::string::npos;
    cie.b_key = augmentation->find('B') != std::string::npos;
    cie.code_alignment = *code_alignment;
    cie.data_alignment = *data_alignment;
    cie.return_register = *return_register;
    cie.initial = {cursor.rest(), cursor.address()};
    return cie;
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
  ByteView bytes_;
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
