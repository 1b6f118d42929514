#include "libprobe/rewrite/index/relativize.hpp"

#include <algorithm>
#include <array>

#include "libprobe/plan/undo.hpp"
#include "libprobe/rewrite/index/index_of.hpp"
#include "libprobe/rewrite/section_table.hpp"
#include "libprobe/rewrite/undoable.hpp"

namespace reprobe {
namespace {

constexpr Size kAlign{4};

// `reprobe sled` adds up to 136 to offsets from the stack pointer, in some of the arguments that
// are equal now: three digits each, in a string of its own.
std::uint64_t growth(const ProbeIndex& index, const ElfHeader& header) {
  if (header.machine != EM_X86_64) return 0;
  constexpr std::string_view kStack = "(%rsp";
  std::uint64_t bytes = 0;
  for (const IndexEntry& entry : index.entries) {
    std::uint64_t operands = 0;
    for (auto at = entry.arguments.find(kStack); at != std::string::npos;
         at = entry.arguments.find(kStack, at + 1)) {
      ++operands;
    }
    if (operands != 0) bytes += entry.arguments.size() + 1 + 3 * operands;
  }
  return (bytes + 3) / 4 * 4;
}

Section section_of(VirtAddr address, Size size) {
  Section section;
  section.name = kIndexSection;
  section.type = SHT_NOTE;
  section.flags = SHF_ALLOC;
  section.addr = address;
  section.size = size;
  section.addralign = kAlign;
  return section;
}

Result<void> add_index(const ElfFile& file, RelativizePlan& result) {
  const Size size{index_size(result.index) + growth(result.index, file.header())};
  const auto room = find_room(file, {.size = size, .align = kAlign, .notes = true});
  if (!room) return tl::unexpected(room.error());
  auto bytes = encode_index(result.index, room->address, size, file.header());
  if (!bytes) return tl::unexpected(bytes.error());
  auto headers = SectionTable::of(file);
  if (!headers) return tl::unexpected(headers.error());
  const std::array sections{section_of(room->address, size)};
  auto done = place(result.plan, *headers, file, *room,
                    {.bytes = std::move(*bytes), .sections = sections, .eh_frame_hdr = {}});
  if (!done) return done;
  result.address = room->address;
  done = renew_undo(result.plan, *headers, file, kUndoSection);
  if (!done) return done;
  return headers->write(result.plan);
}

Result<void> renew_index(const ElfFile& file, const IndexPlace& place, RelativizePlan& result) {
  result.address = place.address;
  const auto old = read_index(file, place);
  if (!old) return tl::unexpected(old.error());
  if (same_notes(*old, result.index)) return {};
  if (index_size(result.index) > place.size.value) {
    return fail(ErrorCode::refused, std::string(kIndexSection),
                "the index has grown and does not fit its place",
                "relativize the file from which this one was made");
  }
  auto bytes = encode_index(result.index, place.address, place.size, file.header());
  if (!bytes) return tl::unexpected(bytes.error());
  result.renewed = true;
  return result.plan.replace(file.source(), place.offset, std::move(*bytes),
                             "the index says what the notes say");
}

}  // namespace

Result<RelativizePlan> plan_relativize(const ElfFile& file, const ProbeFile& probes,
                                       const RelativizeOptions& options) {
  auto index = index_of(file, probes, options.selected);
  if (!index) return tl::unexpected(index.error());
  RelativizePlan result;
  result.index = std::move(*index);
  for (const Probe& probe : probes.probes) {
    const bool wanted = !options.selected || options.selected(probe);
    if (wanted && probe.verdict == Verdict::dangling) ++result.dangling;
  }
  if (result.index.entries.empty()) {
    return fail(ErrorCode::refused, std::string(kStapsdtSection), "no probe to put in an index");
  }
  const auto place = find_index(file);
  if (!place && file.section(kIndexSection) != nullptr) {
    return fail(ErrorCode::refused, std::string(kIndexSection),
                "the file has an index that no program header leads to");
  }
  auto done = place ? renew_index(file, *place, result) : add_index(file, result);
  if (!done) return tl::unexpected(done.error());
  return result;
}

}  // namespace reprobe
