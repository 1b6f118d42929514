#include "libprobe/verify/stub_frame_bytes.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "libprobe/code/unwind_frames.hpp"
#include "libprobe/code/unwind_records.hpp"

namespace reprobe {
namespace {

constexpr std::string_view kFrames = ".eh_frame.reprobe";
constexpr std::string_view kDebugRecords = ".debug_frame";
constexpr std::string_view kFrameTable = ".eh_frame_hdr.reprobe";

// Writes the records again, from what they say.
class Restated {
 public:
  // `debug_place`: where in .debug_frame the same records begin.
  Restated(const ElfFile& file, const Section& section, std::uint64_t debug_place)
      : file_(file),
        section_(section),
        records_(FrameSection::Kind::eh_frame, section.addr.value, file.header()),
        debug_records_(FrameSection::Kind::debug_frame, debug_place, file.header()) {}

  // The FDEs in the order of their places.
  bool add(VirtAddr fde_at) {
    std::optional<CfiCie> cie;
    const auto fde = read_fde(file_, fde_at, cie);
    const auto rows = fde ? read_rows(file_, *cie, *fde) : tl::unexpected(Error{});
    if (!rows) return false;
    const FrameKind kind{*cie, rows->initial};
    auto& offset = cies_[fde->cie];
    if (!offset) {
      const auto initial = initial_program(file_.header(), kind);
      if (!initial) return false;
      offset = records_.add_cie(*cie, *initial);
      debug_cies_[fde->cie] = debug_records_.add_cie(*cie, *initial);
      if (fde->cie.value != section_.addr.value + *offset) return false;
    }
    const FrameRows part{fde->start, fde->size, rows->rows};
    const auto program = frame_program(file_, kind, std::span(&part, 1));
    if (!program) return false;
    const auto at = records_.add_fde(*cie, *offset, {fde->start, fde->size}, *program);
    const auto debug_at =
        debug_records_.add_fde(*cie, debug_cies_[fde->cie], {fde->start, fde->size}, *program);
    return at && debug_at && fde_at.value == section_.addr.value + *at;
  }

  bool is_whole_section() {
    records_.add_terminator();
    const auto bytes = file_.contents(section_);
    return bytes && std::ranges::equal(*bytes, records_.bytes());
  }

  // Behind `old_size` bytes of .debug_frame, and padding, are the same records.
  [[nodiscard]] bool are_in_debug_frame(std::uint64_t old_size, std::uint64_t from) const {
    const Section* section = file_.section(kDebugRecords);
    const auto bytes = section == nullptr ? tl::unexpected(Error{}) : file_.contents(*section);
    if (!bytes || bytes->size() < from) return false;
    const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
    return std::ranges::all_of(bytes->subspan(static_cast<std::size_t>(old_size),
                                              static_cast<std::size_t>(from - old_size)),
                               is_zero) &&
           std::ranges::equal(bytes->subspan(static_cast<std::size_t>(from)),
                              debug_records_.bytes());
  }

 private:
  const ElfFile& file_;
  const Section& section_;
  FrameSection records_, debug_records_;
  std::map<VirtAddr, std::optional<std::uint64_t>> cies_;
  std::map<VirtAddr, std::uint64_t> debug_cies_;
};

// Bytes of the original's .debug_frame, and where behind them a record may begin.
std::uint64_t debug_frame_size(const ElfFile& before) {
  const Section* section = before.section(kDebugRecords);
  return section == nullptr ? 0 : section->size.value;
}
std::uint64_t debug_frame_end(const ElfFile& before) {
  const std::uint64_t word = before.header().word();
  return (debug_frame_size(before) + word - 1) / word * word;
}

bool are_the_records(const ElfFile& before, const ElfFile& file, const Section& section,
                     std::span<const UnwindEntry> added) {
  std::set<VirtAddr> places;
  for (const UnwindEntry& entry : added) {
    if (!places.insert(entry.fde).second) return false;
  }
  Restated restated(file, section, debug_frame_end(before));
  const bool read =
      std::ranges::all_of(places, [&](VirtAddr place) { return restated.add(place); });
  if (!read || !restated.is_whole_section()) return false;
  // Where stubs share records, debuggers have others: compare_debug_frame() looks at these.
  return file.section(kFrameTable) == nullptr ||
         restated.are_in_debug_frame(debug_frame_size(before), debug_frame_end(before));
}

}  // namespace

std::vector<std::string> check_stub_frames(const ElfFile& before, const ElfFile& file,
                                           const UnwindIndex& index,
                                           std::span<const UnwindEntry> added) {
  std::vector<std::string> wrong;
  const Section* frames = file.section(kFrames);
  if (frames == nullptr ? !added.empty() : !are_the_records(before, file, *frames, added)) {
    wrong.emplace_back(".eh_frame.reprobe is not what describes the stubs");
  }
  const Section* table = file.section(kFrameTable);
  if (table == nullptr) return wrong;
  const auto expected =
      write_unwind_index(index.entries, index.eh_frame, table->addr, file.header());
  const auto bytes = file.contents(*table);
  if (!expected || !bytes || !std::ranges::equal(*expected, *bytes)) {
    wrong.emplace_back(".eh_frame_hdr.reprobe is not the table of the result's FDEs");
  }
  return wrong;
}

}  // namespace reprobe
