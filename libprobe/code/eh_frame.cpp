#include "libprobe/code/eh_frame.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "libprobe/code/frame_reader.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kPair = 8;  // bytes of one entry of the search table

struct HeaderPlace {
  VirtAddr address;
  Size size;
};

// Of .eh_frame_hdr. The unwinder goes by the program header; the section serves files that lack it.
std::optional<HeaderPlace> find_header(const ElfFile& file) {
  for (const Segment& segment : file.segments()) {
    if (segment.type == PT_GNU_EH_FRAME) return HeaderPlace{segment.vaddr, segment.filesz};
  }
  const Section* section = file.section(".eh_frame_hdr");
  if (section == nullptr || !section->allocated() || section->nobits()) return std::nullopt;
  return HeaderPlace{section->addr, section->size};
}

struct UnwindHeader {
  VirtAddr address;
  std::optional<VirtAddr> eh_frame;
  ByteView table;  // empty where there is none of the usual form
};

std::optional<UnwindHeader> read_header(const ElfFile& file) {
  const auto place = find_header(file);
  if (!place) return std::nullopt;
  const FrameHeader head =
      read_frame_header(file.bytes_at(place->address, place->size), place->address, file.header());
  UnwindHeader header{place->address, head.eh_frame, {}};
  if (head.count && *head.count <= head.entries.size() / kPair)
    header.table = head.entries.first(static_cast<std::size_t>(*head.count) * kPair);
  return header;
}

// Every FDE from `start` on, by address; nothing where a record cannot be read: the absence of an
// FDE would then mean nothing.
std::optional<std::vector<Fde>> walk(const ElfFile& file, VirtAddr start,
                                     std::optional<VirtAddr> end) {
  std::vector<Fde> fdes;
  FrameReader reader(file);
  VirtAddr at = start;
  while (!end || at < *end) {
    const auto record = reader.read(at);
    if (!record || record->next <= at || (end && record->next > *end)) return std::nullopt;
    if (record->terminator) break;
    if (record->fde) fdes.push_back(*record->fde);
    at = record->next;
  }
  std::ranges::sort(fdes, {}, &Fde::start);
  return fdes;
}

}  // namespace

std::optional<UnwindTable> UnwindTable::open(const ElfFile& file) {
  if (file.header().type == ET_REL) return std::nullopt;
  UnwindTable table(file);
  const auto header = read_header(file);
  if (header && !header->table.empty()) {
    table.search_table_ = header->table;
    table.header_address_ = header->address;
    return table;
  }
  const Section* section = file.section(".eh_frame");
  std::optional<std::vector<Fde>> fdes;
  if (section != nullptr && section->allocated() && !section->nobits()) {
    const auto end = checked_add(section->addr.value, section->size.value);
    if (end) fdes = walk(file, section->addr, VirtAddr{*end});
  } else if (header && header->eh_frame) {
    // Without sections the end is known by the terminator only.
    fdes = walk(file, *header->eh_frame, std::nullopt);
  }
  if (!fdes || fdes->empty()) return std::nullopt;
  table.walked_ = std::move(*fdes);
  return table;
}

// A field of the search table: an address relative to .eh_frame_hdr.
VirtAddr UnwindTable::table_field(std::size_t at) const {
  const std::uint64_t value = load_uint(search_table_, at, 4, file_->header().order);
  const std::uint64_t sign_extended = (value ^ 0x80000000U) - 0x80000000U;
  return wrap_address(header_address_.value + sign_extended, file_->header());
}

std::optional<Fde> UnwindTable::find(VirtAddr address) const {
  std::optional<Fde> found;
  if (!search_table_.empty()) {
    std::size_t low = 0;  // entries below it start at or before the address
    std::size_t high = search_table_.size() / kPair;
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (table_field(middle * kPair) <= address) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == 0) return std::nullopt;
    const auto record = FrameReader(*file_).read(table_field((low - 1) * kPair + 4));
    if (record) found = record->fde;
  } else {
    const auto after = std::ranges::upper_bound(walked_, address, {}, &Fde::start);
    if (after != walked_.begin()) found = *std::prev(after);
  }
  // The table is the file's word; what counts is whether the FDE itself covers the address.
  if (!found || !in_range(address.value, found->start.value, found->size.value))
    return std::nullopt;
  return found;
}

std::vector<Fde> UnwindTable::starting_in(VirtAddr first, VirtAddr end) const {
  std::vector<Fde> fdes;
  if (search_table_.empty()) {
    auto at = std::ranges::lower_bound(walked_, first, {}, &Fde::start);
    for (; at != walked_.end() && at->start < end; ++at) fdes.push_back(*at);
    return fdes;
  }
  std::size_t low = 0;  // entries below it start before `first`
  std::size_t high = search_table_.size() / kPair;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (table_field(middle * kPair) < first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  FrameReader reader(*file_);
  for (; low < search_table_.size() / kPair && table_field(low * kPair) < end; ++low) {
    const VirtAddr start = table_field(low * kPair);
    const auto record = reader.read(table_field(low * kPair + 4));
    const bool readable = record && record->fde && record->fde->start == start;
    fdes.push_back(readable ? *record->fde : Fde{start, Size{1}, true, {}});
  }
  return fdes;
}

}  // namespace reprobe
