#include "libprobe/verify/debug_stub_frames.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "libprobe/code/unwind_frames.hpp"
#include "libprobe/code/unwind_records.hpp"
#include "libprobe/verify/debug_frame_records.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

constexpr std::string_view kDebugFrames = ".debug_frame";
// Rules in all rows that are read: far more than the stubs of any program have.
constexpr std::size_t kMostDebugRules = std::size_t{1} << 22;

// Reads the new records and writes them again, from what they say.
class DebugRestated {
 public:
  DebugRestated(const ElfFile& file, ByteView bytes, std::uint64_t place)
      : file_(file),
        records_(bytes, file.header()),
        place_(place),
        again_(FrameSection::Kind::debug_frame, place, file.header()) {}

  // False: a record cannot be read, or would be written in another way.
  bool read() {
    bool same = true;
    const auto bad =
        records_.walk(static_cast<std::size_t>(place_), [&](const DebugRecord& record) {
          same = add(record);
          return same;
        });
    return same && !bad;
  }

  [[nodiscard]] const Bytes& bytes() const { return again_.bytes(); }
  std::vector<FoundFrame> take() { return std::move(frames_); }

 private:
  bool add(const DebugRecord& record) {
    auto cie = records_.read_cie(record.cie);
    if (!cie || rules_ > kMostDebugRules) return false;
    auto rows = read_rows(file_, *cie, record.fde);
    if (!rows) return false;
    rules_ += rows->rules + 1;
    const FrameKind kind{*cie, rows->initial};
    auto& offset = cies_[record.cie];
    if (!offset) {
      const auto initial = initial_program(file_.header(), kind);
      if (!initial) return false;
      offset = again_.add_cie(*cie, *initial);
      if (place_ + *offset != record.cie) return false;
    }
    const FrameRows part{record.fde.start, record.fde.size, rows->rows};
    const auto program = frame_program(file_, kind, std::span(&part, 1));
    const auto at = program ? again_.add_fde(*cie, *offset, {part.start, part.size}, *program)
                            : tl::unexpected(program.error());
    if (!at || place_ + *at != record.at) return false;
    frames_.push_back({std::move(*cie), record.fde, std::move(*rows)});
    return true;
  }

  const ElfFile& file_;
  DebugFrameRecords records_;
  std::uint64_t place_;
  FrameSection again_;
  std::map<std::uint64_t, std::optional<std::uint64_t>> cies_;
  std::vector<FoundFrame> frames_;
  std::size_t rules_{};
};

bool are_zeros(ByteView bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

DebugStubFrames::DebugStubFrames(const ElfFile& before, const ElfFile& after, const Section& stubs,
                                 std::vector<Finding>& out) {
  const Section* section = after.section(kDebugFrames);
  const Section* old = before.section(kDebugFrames);
  const std::uint64_t old_size = old == nullptr ? 0 : old->size.value;
  if (section == nullptr || section->size.value <= old_size) return;
  const std::uint64_t word = after.header().word();
  const std::uint64_t place = (old_size + word - 1) / word * word;
  const auto bytes = after.contents(*section);
  DebugRestated restated(after, bytes ? *bytes : ByteView{}, place);
  if (!bytes || bytes->size() < place || !restated.read() ||
      !are_zeros(bytes->subspan(static_cast<std::size_t>(old_size),
                                static_cast<std::size_t>(place - old_size))) ||
      !std::ranges::equal(bytes->subspan(static_cast<std::size_t>(place)), restated.bytes())) {
    out.push_back(verify_finding("verify-unwind",
                                 "the new records of .debug_frame are not what describes code"));
    return;
  }
  frames_ = restated.take();
  std::erase_if(frames_, [&](const FoundFrame& frame) {
    return !in_range(frame.fde.start.value, stubs.addr.value, stubs.size.value);
  });
  std::ranges::sort(frames_, {}, [](const FoundFrame& frame) { return frame.fde.start; });
}

const FoundFrame* DebugStubFrames::find(VirtAddr address) const {
  const auto behind = std::ranges::upper_bound(frames_, address, {},
                                               [](const FoundFrame& f) { return f.fde.start; });
  if (behind == frames_.begin()) return nullptr;
  const FoundFrame& frame = *std::prev(behind);
  return in_range(address.value, frame.fde.start.value, frame.fde.size.value) ? &frame : nullptr;
}

}  // namespace reprobe
