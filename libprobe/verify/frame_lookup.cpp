#include "libprobe/verify/frame_lookup.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace reprobe {
namespace {

// Rules in all rows that are read: far more than the functions of one program's probes have.
constexpr std::size_t kMostFoundRules = std::size_t{1} << 22;

}  // namespace

bool same_frame_kind(const CfiCie& a, const CfiCie& b) {
  return a.return_register == b.return_register && a.signal_frame == b.signal_frame &&
         a.b_key == b.b_key && a.code_alignment == b.code_alignment &&
         a.data_alignment == b.data_alignment;
}

const FoundFrame* FrameLookup::find(VirtAddr address) {
  const auto behind = std::ranges::upper_bound(entries_, address, {}, &UnwindEntry::start);
  if (behind == entries_.begin()) return nullptr;
  const UnwindEntry& entry = *std::prev(behind);
  const FoundFrame* frame = read(entry.fde);
  const bool covers =
      frame != nullptr && in_range(address.value, entry.start.value, frame->fde.size.value);
  return covers ? frame : nullptr;
}

const FoundFrame* FrameLookup::read(VirtAddr fde) {
  auto& frame = frames_.try_emplace(fde).first->second;
  if (frame) return &*frame;
  std::optional<CfiCie> cie;
  auto found = rules_ < kMostFoundRules ? read_fde(*file_, fde, cie) : tl::unexpected(Error{});
  auto rows = found ? read_rows(*file_, *cie, *found) : tl::unexpected(Error{});
  if (!rows) {
    failed_ = true;
    return nullptr;
  }
  rules_ += rows->rules + 1;
  frame = FoundFrame{std::move(*cie), *found, std::move(*rows)};
  return &*frame;
}

}  // namespace reprobe
