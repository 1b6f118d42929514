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
constexpr std::string_view kFrameTable = ".eh_frame_hdr.reprobe";

// Writes the records again, from what they say.
class Restated {
 public:
  Restated(const ElfFile& file, const Section& section)
      : file_(file),
        section_(section),
        records_(FrameSection::Kind::eh_frame, section.addr.value, file.header()) {}

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
      if (fde->cie.value != section_.addr.value + *offset) return false;
    }
    const FrameRows part{fde->start, fde->size, rows->rows};
    const auto program = frame_program(file_, kind, std::span(&part, 1));
    if (!program) return false;
    const auto at = records_.add_fde(*cie, *offset, {fde->start, fde->size}, *program);
    return at && fde_at.value == section_.addr.value + *at;
  }

  bool is_whole_section() {
    records_.add_terminator();
    const auto bytes = file_.contents(section_);
    return bytes && std::ranges::equal(*bytes, records_.bytes());
  }

 private:
  const ElfFile& file_;
  const Section& section_;
  FrameSection records_;
  std::map<VirtAddr, std::optional<std::uint64_t>> cies_;
};

bool are_the_records(const ElfFile& file, const Section& section,
                     std::span<const UnwindEntry> added) {
  std::set<VirtAddr> places;
  for (const UnwindEntry& entry : added) {
    if (!places.insert(entry.fde).second) return false;
  }
  Restated restated(file, section);
  const bool read =
      std::ranges::all_of(places, [&](VirtAddr place) { return restated.add(place); });
  return read && restated.is_whole_section();
}

}  // namespace

std::vector<std::string> check_stub_frames(const ElfFile& file, const UnwindIndex& index,
                                           std::span<const UnwindEntry> added) {
  std::vector<std::string> wrong;
  const Section* frames = file.section(kFrames);
  if (frames == nullptr ? !added.empty() : !are_the_records(file, *frames, added)) {
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
