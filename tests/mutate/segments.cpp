// What the kernel and the dynamic linker map and find: segments that are new, copied, longer or
// laid over others.
#include <fmt/format.h>

#include <algorithm>

#include "tests/mutate/draft.hpp"

namespace mutate {
namespace {

using reprobe::PT_DYNAMIC;
using reprobe::PT_GNU_EH_FRAME;
using reprobe::PT_INTERP;
using reprobe::PT_LOAD;

std::uint64_t entry_size(const Draft& draft) { return draft.is64() ? 56 : 32; }

void put_load(Draft& draft, std::uint64_t header, std::uint32_t flags, std::uint64_t offset,
              std::uint64_t address, std::uint64_t filesz, std::uint64_t memsz) {
  const std::uint64_t values[] = {PT_LOAD, flags, offset, address, address, filesz, memsz, kPage};
  for (std::size_t i = 0; i < 8; ++i) draft.put(header, kPhdr[i], values[i]);
}

// A page of a segment: its address, and a copy behind the file with a byte changed, or with none.
struct Page {
  std::uint64_t address{};
  std::uint64_t copy{};
  std::uint32_t flags{};
};

bool copy_page(Draft& draft, Page& page) {
  const Segment* load = draft.any_segment(PT_LOAD);
  if (load == nullptr || load->filesz.value == 0) return false;
  const std::uint64_t at = draft.random.below(load->filesz.value);
  page.address = (load->vaddr.value + at) / kPage * kPage;
  page.flags = load->flags;
  const std::uint64_t begin = (load->offset.value + at) / kPage * kPage;
  const std::uint64_t size = std::min<std::uint64_t>(kPage, draft.bytes.size() - begin);
  Bytes bytes = draft.copy(begin, size);
  bytes.resize(kPage);
  draft.told = fmt::format("the page {:#x}, ", page.address);
  if (!draft.random.one_in(4)) {
    const std::uint64_t where = draft.random.below(kPage);
    bytes[where] ^= std::byte{1};
    draft.told += fmt::format("changed at {:#x}, ", page.address + where);
  }
  page.copy = draft.append(bytes, kPage);
  return true;
}

// The table moves behind the file, with a segment of its own; gives the offset of the new entry.
std::uint64_t with_another_header(Draft& draft) {
  const auto& header = draft.file.header();
  std::uint64_t top = 0;
  for (const Segment& s : draft.file.segments()) {
    if (s.type == PT_LOAD) top = std::max(top, s.vaddr.value + s.memsz.value);
  }
  const std::uint64_t size = entry_size(draft);
  Bytes table = draft.copy(header.phoff.value, header.phnum * size);
  table.resize(kPage);
  const std::uint64_t address = (top + kPage - 1) / kPage * kPage + kPage;
  const std::uint64_t at = draft.append(table, kPage);
  for (const Segment& s : draft.file.segments()) {
    if (s.type != reprobe::PT_PHDR) continue;
    const std::uint64_t entry = at + size * s.index;
    draft.put(entry, kPhdr[kPOffset], at);
    draft.put(entry, kPhdr[kPVaddr], address);
    draft.put(entry, kPhdr[kPPaddr], address);
    draft.put(entry, kPhdr[kPFilesz], size * (header.phnum + 2));
    draft.put(entry, kPhdr[kPMemsz], size * (header.phnum + 2));
  }
  put_load(draft, at + size * (header.phnum + 1), 4, at, address, kPage, kPage);
  draft.put(0, kEhdr[kEPhoff], at);
  draft.put(0, kEhdr[kEPhnum], header.phnum + 2);
  return at + size * header.phnum;
}

// A new segment lies over a page that an old one maps.
bool load_over_a_page(Draft& draft) {
  Page page;
  if (!copy_page(draft, page)) return false;
  const std::uint64_t entry = with_another_header(draft);
  const std::uint64_t address = page.address + draft.random.below(2) * draft.random.below(kPage);
  const std::uint64_t skip = address - page.address;
  put_load(draft, entry, page.flags, page.copy + skip, address, kPage - skip, kPage - skip);
  draft.told += fmt::format("is mapped again by a new segment at {:#x}", address);
  return true;
}

// Nothing of the file: zeros over a page, or a segment without length.
bool load_of_zeros(Draft& draft) {
  const Segment* load = draft.any_segment(PT_LOAD);
  if (load == nullptr) return false;
  const std::uint64_t entry = with_another_header(draft);
  const std::uint64_t address = load->vaddr.value + draft.random.below(load->memsz.value + kPage);
  const std::uint64_t memsz = draft.random.one_in(2) ? 0 : 1 + draft.random.below(kPage);
  put_load(draft, entry, load->flags, 0, address, 0, memsz);
  draft.told = fmt::format("{} bytes of zeros at {:#x}", memsz, address);
  return true;
}

// A header that nothing needs becomes a segment: PT_NOTE, PT_GNU_STACK and their like.
bool load_instead(Draft& draft) {
  const std::uint32_t types[] = {reprobe::PT_NOTE, reprobe::PT_GNU_STACK, reprobe::PT_GNU_PROPERTY,
                                 0};
  const Segment* given = draft.any_segment(types[draft.random.below(4)]);
  Page page;
  if (given == nullptr || !copy_page(draft, page)) return false;
  put_load(draft, given->header_offset.value, page.flags, page.copy, page.address, kPage, kPage);
  draft.told += fmt::format("is mapped again by program header {}", given->index);
  return true;
}

// Bytes of the file that were not mapped are, at a place of their own.
bool load_of_the_rest(Draft& draft) {
  const std::uint64_t begin = draft.random.below(draft.bytes.size()) / kPage * kPage;
  const std::uint64_t entry = with_another_header(draft);
  const std::uint64_t address = 0x40000000;
  put_load(draft, entry, 4 + static_cast<std::uint32_t>(draft.random.below(4)), begin, address,
           kPage, kPage);
  draft.told = fmt::format("the page {:#x} of the file is mapped at {:#x}; ", begin, address);
  return draft.random.one_in(2) ||
         draft.disturb_byte({begin, std::min<std::uint64_t>(begin + kPage, draft.bytes.size())},
                            "byte of it");
}

bool load_from_a_copy(Draft& draft) {
  const Segment* load = draft.any_segment(PT_LOAD);
  if (load == nullptr || load->filesz.value == 0) return false;
  const std::uint64_t skip = load->offset.value % kPage;
  Bytes bytes = draft.copy(load->offset.value - skip, load->filesz.value + skip);
  if (bytes.empty()) return false;
  draft.told = fmt::format("segment {} is read from a copy", load->index);
  if (!draft.random.one_in(4)) {
    const std::uint64_t at = skip + draft.random.below(load->filesz.value);
    bytes[at] ^= std::byte{1};
    draft.told += fmt::format(", changed at {:#x}", load->vaddr.value + at - skip);
  }
  const std::uint64_t at = draft.append(bytes, kPage) + skip;
  draft.put(load->header_offset.value, kPhdr[kPOffset], at);
  return true;
}

bool longer_load(Draft& draft) {
  const Segment* load = draft.any_segment(PT_LOAD);
  if (load == nullptr) return false;
  const std::uint64_t header = load->header_offset.value;
  const std::uint64_t sizes[] = {1, 8, kPage, 2 * kPage, 16 * kPage};
  const std::uint64_t more = sizes[draft.random.below(5)];
  const bool file_too = draft.random.one_in(2);
  const bool less = draft.random.one_in(4);
  const auto change = [&](PhdrField field) {
    const std::uint64_t old = draft.get(header, kPhdr[field]);
    draft.put(header, kPhdr[field], less ? old - std::min(old, more) : old + more);
  };
  change(kPMemsz);
  if (file_too) change(kPFilesz);
  draft.told = fmt::format("segment {}: {} bytes {} in memory{}", load->index, more,
                           less ? "less" : "more", file_too ? " and in the file" : "");
  return true;
}

// Address and offset move together: still congruent, and over another page.
bool moved_load(Draft& draft) {
  const Segment* load = draft.any_segment(PT_LOAD);
  if (load == nullptr) return false;
  const std::uint64_t header = load->header_offset.value;
  const std::uint64_t steps[] = {1, 8, 64, kPage};
  const std::uint64_t step = steps[draft.random.below(4)];
  const bool down = draft.random.one_in(2);
  const auto move = [&](PhdrField field, bool subtract) {
    const std::uint64_t old = draft.get(header, kPhdr[field]);
    draft.put(header, kPhdr[field], subtract ? old - step : old + step);
  };
  move(kPVaddr, down);
  move(kPOffset, down);
  if (draft.random.one_in(2)) move(kPPaddr, down);
  if (draft.random.one_in(2)) {
    move(kPFilesz, !down);
    move(kPMemsz, !down);
  }
  draft.told =
      fmt::format("segment {} begins {:#x} {}", load->index, step, down ? "lower" : "higher");
  return true;
}

bool alignment(Draft& draft) {
  const Segment* segment = draft.pick(draft.file.segments());
  if (segment == nullptr) return false;
  const std::uint64_t values[] = {0, 1, 2, 8, 3, kPage, 0x10000, 0x200000, 0x40000000};
  const std::uint64_t value = values[draft.random.below(9)];
  if (value == segment->align.value) return false;
  draft.put(segment->header_offset.value, kPhdr[kPAlign], value);
  draft.told = fmt::format("p_align of program header {} is {:#x}", segment->index, value);
  return true;
}

bool interpreter_elsewhere(Draft& draft) {
  const Segment* interp = draft.any_segment(PT_INTERP);
  if (interp == nullptr) return false;
  Bytes text = draft.copy(interp->offset.value, interp->filesz.value);
  if (draft.random.one_in(2)) {
    const auto other =
        reprobe::as_bytes(std::string_view("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", 43));
    text.assign(other.begin(), other.end());
  }
  const std::uint64_t at = draft.append(text, 8);
  draft.put(interp->header_offset.value, kPhdr[kPOffset], at);
  draft.put(interp->header_offset.value, kPhdr[kPFilesz], text.size());
  draft.told = fmt::format("PT_INTERP leads to {:#x}", at);
  return true;
}

// Zeros of a segment's file bytes that no section owns, where `size` bytes fit; 0: none.
std::uint64_t room_in_a_segment(Draft& draft, std::uint64_t size) {
  for (const Segment& load : draft.file.segments()) {
    if (load.type != PT_LOAD) continue;
    std::uint64_t run = 0;
    const std::uint64_t end = load.offset.value + load.filesz.value;
    for (std::uint64_t at = load.offset.value; at < end && draft.holds(at, 1); ++at) {
      run = draft.bytes[at] == std::byte{0} ? run + 1 : 0;
      if (run >= size + 16) return (at + 1 - size) / 8 * 8;
    }
  }
  return 0;
}

std::uint64_t address_of(const Draft& draft, std::uint64_t offset) {
  for (const Segment& load : draft.file.segments()) {
    if (load.type == PT_LOAD && reprobe::in_range(offset, load.offset.value, load.filesz.value))
      return offset - load.offset.value + load.vaddr.value;
  }
  return 0;
}

// PT_DYNAMIC or PT_GNU_EH_FRAME lead to a copy in what is mapped as zeros, or a little further.
bool led_elsewhere(Draft& draft) {
  const Segment* segment = draft.any_segment(draft.random.one_in(2) ? PT_DYNAMIC : PT_GNU_EH_FRAME);
  if (segment == nullptr) return false;
  const std::uint64_t header = segment->header_offset.value;
  const std::uint64_t room = room_in_a_segment(draft, segment->filesz.value);
  if (room == 0 || draft.random.one_in(3)) {
    const std::uint64_t step = draft.random.one_in(2) ? 16 : 8;
    draft.put(header, kPhdr[kPVaddr], segment->vaddr.value + step);
    if (draft.random.one_in(2)) draft.put(header, kPhdr[kPOffset], segment->offset.value + step);
    draft.told = fmt::format("program header {} leads {} bytes further", segment->index, step);
    return true;
  }
  draft.write(room, draft.copy(segment->offset.value, segment->filesz.value));
  draft.put(header, kPhdr[kPVaddr], address_of(draft, room));
  draft.put(header, kPhdr[kPPaddr], address_of(draft, room));
  draft.put(header, kPhdr[kPOffset], room);
  draft.told = fmt::format("program header {} leads to a copy at {:#x}", segment->index, room);
  return true;
}

// Only the file's offset leads elsewhere: ld.so takes the address, readers of files the offset.
bool offset_elsewhere(Draft& draft) {
  const Segment* segment = draft.pick(draft.file.segments());
  if (segment == nullptr || segment->type == PT_LOAD || segment->filesz.value == 0) return false;
  const Bytes copy = draft.copy(segment->offset.value, segment->filesz.value);
  const std::uint64_t at = draft.append(copy, 8);
  draft.put(segment->header_offset.value, kPhdr[kPOffset], at);
  draft.told =
      fmt::format("p_offset of program header {} leads to a copy at {:#x}; ", segment->index, at);
  return draft.random.one_in(2) || draft.disturb_byte({at, at + copy.size()}, "the copy");
}

constexpr Kind kKinds[] = {
    {"segment over a page", load_over_a_page},
    {"segment of zeros", load_of_zeros},
    {"segment instead of a header", load_instead},
    {"segment of unmapped bytes", load_of_the_rest},
    {"segment from a copy", load_from_a_copy},
    {"segment longer or shorter", longer_load},
    {"segment moved", moved_load},
    {"p_align", alignment},
    {"PT_INTERP elsewhere", interpreter_elsewhere},
    {"PT_DYNAMIC or PT_GNU_EH_FRAME elsewhere", led_elsewhere},
    {"p_offset to a copy", offset_elsewhere},
};

}  // namespace

std::span<const Kind> segment_kinds() { return kKinds; }

}  // namespace mutate
