#include "libprobe/code/unwind_index.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "libprobe/code/cfi.hpp"
#include "libprobe/code/frame_reader.hpp"
#include "libprobe/code/unwind_program.hpp"

namespace reprobe {
namespace {

auto no_index(const char* where, const char* what) { return fail(ErrorCode::refused, where, what); }

const Segment* program_header(const ElfFile& file, std::uint32_t type) {
  for (const Segment& segment : file.segments())
    if (segment.type == type) return &segment;
  return nullptr;
}

const Section* loaded_section(const ElfFile& file, std::string_view name) {
  const Section* section = file.section(name);
  return section != nullptr && section->allocated() && !section->nobits() ? section : nullptr;
}

// Walks .eh_frame to its terminator, or to the end of the section. A discarded function's FDE has
// a start of 0 (libgcc's unwind-dw2-fde.c skips it too).
Result<std::vector<UnwindEntry>> unwind_entries(const ElfFile& file, VirtAddr start,
                                                std::optional<VirtAddr> end) {
  std::vector<UnwindEntry> entries;
  FrameReader records(file);
  std::optional<CfiCie> cie;
  for (VirtAddr at = start; !end || at < *end;) {
    const auto record = records.read(at);
    if (!record || record->next <= at || (end && record->next > *end))
      return no_index(".eh_frame", "a record is cut off");
    if (record->terminator) break;
    if (!record->cie) {
      const auto fde = read_fde(file, at, cie);
      if (!fde) return tl::unexpected(fde.error());
      if (fde->start.value != 0 && fde->size.value != 0) entries.push_back({fde->start, at});
    }
    at = record->next;
  }
  std::ranges::stable_sort(entries, {}, &UnwindEntry::start);
  return entries;
}

Result<std::vector<UnwindEntry>> read_table(const FrameHeader& header, VirtAddr address,
                                            const ElfHeader& elf) {
  if (*header.count > header.entries.size() / kUnwindIndexEntry)
    return no_index(".eh_frame_hdr", "the search table is cut off");
  const auto field = [&](std::size_t at) {
    const std::uint64_t value = load_uint(header.entries, at, 4, elf.order);
    return wrap_address(address.value + ((value ^ 0x80000000U) - 0x80000000U), elf);
  };
  std::vector<UnwindEntry> entries(static_cast<std::size_t>(*header.count));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::size_t at = i * kUnwindIndexEntry;
    entries[i] = {field(at), field(at + 4)};
  }
  if (!std::ranges::is_sorted(entries, {}, &UnwindEntry::start))
    return no_index(".eh_frame_hdr", "the search table is not sorted");
  return entries;
}

}  // namespace

Result<UnwindIndex> read_unwind_index(const ElfFile& file) {
  UnwindIndex index;
  if (file.header().type == ET_REL) return index;
  const Segment* segment = program_header(file, PT_GNU_EH_FRAME);
  const Section* section = loaded_section(file, ".eh_frame");
  Result<std::vector<UnwindEntry>> entries;
  if (segment != nullptr) {
    index.found = UnwindIndex::Found::by_table;
    const FrameHeader header = read_frame_header(file.bytes_at(segment->vaddr, segment->filesz),
                                                 segment->vaddr, file.header());
    if (!header.eh_frame) return no_index(".eh_frame_hdr", "its head cannot be read");
    index.eh_frame = *header.eh_frame;
    if (header.count.value_or(0) != 0) {
      entries = read_table(header, segment->vaddr, file.header());
      index.table = UnwindIndex::Table{segment->vaddr, header.entries_address};
    } else {
      entries = unwind_entries(file, *header.eh_frame, std::nullopt);
    }
  } else if (section != nullptr) {
    if (program_header(file, PT_DYNAMIC) == nullptr)
      index.found = UnwindIndex::Found::by_registration;
    index.eh_frame = section->addr;
    const auto end = checked_add(section->addr.value, section->size.value);
    if (!end) return no_index(".eh_frame", "the section wraps");
    entries = unwind_entries(file, section->addr, VirtAddr{*end});
  }
  if (!entries) return tl::unexpected(entries.error());
  index.entries = std::move(*entries);
  return index;
}

Result<std::uint32_t> unwind_distance(VirtAddr target, VirtAddr from, const ElfHeader& header) {
  const std::uint64_t distance = target.value - from.value;
  const auto low = static_cast<std::uint32_t>(distance & 0xffffffffU);
  // In a 32-bit file every distance wraps into place.
  const auto sign_extended = (std::uint64_t{low} ^ 0x80000000U) - 0x80000000U;
  if (header.is64 && sign_extended != distance)
    return no_index(".eh_frame_hdr", "the code or its unwind information lies over 2 GiB away");
  return low;
}

Result<void> append_unwind_entries(Bytes& bytes, std::span<const UnwindEntry> entries,
                                   VirtAddr base, const ElfHeader& header) {
  for (const UnwindEntry& entry : entries) {
    for (const VirtAddr target : {entry.start, entry.fde}) {
      const auto distance = unwind_distance(target, base, header);
      if (!distance) return tl::unexpected(distance.error());
      append_number(bytes, *distance, 4, header);
    }
  }
  return {};
}

Result<Bytes> write_unwind_index(std::span<const UnwindEntry> entries, VirtAddr eh_frame,
                                 VirtAddr address, const ElfHeader& header) {
  Bytes bytes;
  bytes.reserve(kUnwindIndexHead + entries.size() * kUnwindIndexEntry);
  for (const unsigned field :
       {1U, DW_EH_PE_pcrel | DW_EH_PE_sdata4, DW_EH_PE_udata4, DW_EH_PE_datarel | DW_EH_PE_sdata4})
    append_number(bytes, field, 1, header);
  const auto distance = unwind_distance(eh_frame, VirtAddr{address.value + 4}, header);
  if (!distance) return tl::unexpected(distance.error());
  append_number(bytes, *distance, 4, header);
  const auto count = narrow<std::uint32_t>(entries.size());
  if (!count) return no_index(".eh_frame_hdr", "too many functions");
  append_number(bytes, *count, 4, header);
  if (auto ok = append_unwind_entries(bytes, entries, address, header); !ok)
    return tl::unexpected(ok.error());
  return bytes;
}

}  // namespace reprobe
