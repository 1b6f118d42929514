#include "libprobe/rewrite/layout_headers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "libprobe/notes/walk.hpp"

namespace reprobe {
namespace {

// NT_GNU_PROPERTY_TYPE_0 and build-ids are short; a chain longer than this is something else.
constexpr std::uint64_t kMostNoteBytes = 0x10000;

struct HeaderField {
  std::uint64_t at;
  unsigned width;
};

// Elf32_Ehdr and Elf64_Ehdr: System V ABI chapter 4.
HeaderField phoff_field(bool is64) { return is64 ? HeaderField{32, 8} : HeaderField{28, 4}; }
HeaderField phnum_field(bool is64) { return is64 ? HeaderField{56, 2} : HeaderField{44, 2}; }
std::uint64_t ehdr_size(bool is64) { return is64 ? 64 : 52; }
std::uint64_t phdr_size(bool is64) { return is64 ? 56 : 32; }

bool fits(std::uint64_t value, unsigned width) {
  return width == 8 || value < std::uint64_t{1} << (8 * width);
}

bool over(const Section& section, std::uint64_t begin, std::uint64_t size) {
  if (section.nobits() || section.type == SHT_NULL || section.size.value == 0) return false;
  return in_range(section.offset.value, begin, size) ||
         in_range(begin, section.offset.value, section.size.value);
}

// The offsets at which the notes of a chain start, and where it ends; nothing where it is no chain
// up to the end of the bytes.
std::optional<std::vector<std::uint64_t>> note_starts(ByteView bytes, const NoteLayout& layout) {
  std::vector<std::uint64_t> starts;
  std::uint64_t at = 0;
  while (at < bytes.size()) {
    starts.push_back(at);
    const auto note = read_note(bytes, at, layout);
    if (!note || note->missing_padding != 0 || note->next <= at) return std::nullopt;
    at = note->next;
  }
  starts.push_back(at);
  return starts;
}

// The padding with which a PT_NOTE is read: 8 only where it is aligned to 8 (glibc
// _dl_process_pt_note, binutils, elfutils).
NoteLayout layout_of(const ElfFile& file, const Segment& notes) {
  return {.align = notes.align.value == 8 ? 8U : 4U, .order = file.header().order, .gaps = false};
}

std::optional<Segment> merged(const ElfFile& file, const Segment& first, const Segment& second) {
  const std::uint64_t distance = second.offset.value - first.offset.value;
  if (first.filesz.value != distance || second.vaddr.value - first.vaddr.value != distance ||
      first.memsz != first.filesz || second.memsz != second.filesz || first.flags != second.flags)
    return std::nullopt;
  const auto size = checked_add(distance, second.filesz.value);
  if (!size || *size > kMostNoteBytes) return std::nullopt;
  const auto bytes = file.source().slice(first.offset, Size{*size}, "notes");
  if (!bytes) return std::nullopt;

  Segment both = first;
  both.filesz = both.memsz = Size{*size};
  both.align = Size{4};
  auto apart =
      note_starts(bytes->first(static_cast<std::size_t>(distance)), layout_of(file, first));
  const auto behind =
      note_starts(bytes->subspan(static_cast<std::size_t>(distance)), layout_of(file, second));
  if (!apart || !behind) return std::nullopt;
  apart->pop_back();
  for (const std::uint64_t start : *behind) apart->push_back(distance + start);
  if (note_starts(*bytes, layout_of(file, both)) != apart) return std::nullopt;
  return both;
}

std::optional<SpareHeader> spare_note(const ElfFile& file) {
  const auto property = std::ranges::find(file.segments(), PT_GNU_PROPERTY, &Segment::type);
  const auto is_found_otherwise = [&](const Segment& s) {
    return property != file.segments().end() && s.offset == property->offset &&
           s.vaddr == property->vaddr && s.filesz == property->filesz;
  };
  std::vector<Segment> notes;
  for (const Segment& segment : file.segments()) {
    if (segment.type == PT_NOTE) notes.push_back(segment);
  }
  std::ranges::stable_sort(notes, {}, &Segment::offset);
  for (std::size_t i = 1; i < notes.size(); ++i) {
    const Segment& first = notes[i - 1];
    const Segment& second = notes[i];
    const bool read_as_4 = layout_of(file, first).align == 4 && layout_of(file, second).align == 4;
    if (!read_as_4 && !is_found_otherwise(first) && !is_found_otherwise(second)) continue;
    auto both = merged(file, first, second);
    if (!both) continue;
    both->index = std::min(first.index, second.index);
    return SpareHeader{.index = std::max(first.index, second.index), .widened = both};
  }
  return std::nullopt;
}

Result<void> put(Plan& plan, const ElfFile& file, HeaderField field, std::uint64_t value) {
  if (!fits(value, field.width))
    return fail(ErrorCode::internal, "ELF header", "a value does not fit its field");
  Bytes bytes(field.width);
  store_uint(bytes, 0, field.width, file.header().order, value);
  return plan.replace(file.source(), FileOffset{field.at}, std::move(bytes),
                      "where the program headers are and how many");
}

}  // namespace

std::optional<SpareHeader> spare_header(const ElfFile& file) {
  const auto find = [&](std::uint32_t type) {
    return std::ranges::find(file.segments(), type, &Segment::type);
  };
  const auto phdr = find(PT_PHDR);
  if (phdr != file.segments().end() && find(PT_INTERP) == file.segments().end())
    return SpareHeader{.index = phdr->index};
  return spare_note(file);
}

Result<void> check_headers(const ElfFile& file) {
  const ElfHeader& header = file.header();
  if (header.phentsize != phdr_size(header.is64))
    return fail(ErrorCode::refused, "e_phentsize",
                fmt::format("program headers of a size that no kernel takes; expected {}, found {}",
                            phdr_size(header.is64), header.phentsize));
  if (header.phnum + 1 >= PN_XNUM)
    return fail(ErrorCode::refused, "e_phnum", "too many program headers to add one");
  const std::uint64_t size = headers_size(file, file.segments().size()).value;
  if (header.phoff.value < ehdr_size(header.is64))
    return fail(ErrorCode::refused, "e_phoff", "the program headers overlap the ELF header");
  for (const Section& section : file.sections()) {
    if (over(section, 0, ehdr_size(header.is64)) || over(section, header.phoff.value, size))
      return fail(ErrorCode::refused, fmt::format("section {}", section.index),
                  "the section lies over the headers of the file");
  }
  const std::uint64_t section_headers = file.sections().size() * header.shentsize;
  if (in_range(header.shoff.value, header.phoff.value, size) ||
      in_range(header.phoff.value, header.shoff.value, section_headers))
    return fail(ErrorCode::refused, "e_shoff", "the section headers overlap the program headers");
  return {};
}

Size headers_size(const ElfFile& file, std::size_t count) {
  return {count * phdr_size(file.header().is64)};
}

Result<Bytes> encode_headers(const ElfFile& file, std::span<const Segment> segments) {
  const bool is64 = file.header().is64;
  const unsigned word = file.header().word();
  Bytes bytes(static_cast<std::size_t>(headers_size(file, segments.size()).value));
  std::size_t at = 0;
  bool all_fit = true;
  const auto put = [&](std::uint64_t value, unsigned width) {
    all_fit = all_fit && fits(value, width);
    store_uint(bytes, at, width, file.header().order, value);
    at += width;
  };
  for (const Segment& s : segments) {
    put(s.type, 4);
    if (is64) put(s.flags, 4);
    for (const std::uint64_t value :
         {s.offset.value, s.vaddr.value, s.paddr.value, s.filesz.value, s.memsz.value})
      put(value, word);
    if (!is64) put(s.flags, 4);
    put(s.align.value, word);
  }
  if (!all_fit)
    return fail(ErrorCode::internal, "program headers", "a value does not fit the class");
  return bytes;
}

Result<void> point_to_headers(Plan& plan, const ElfFile& file, FileOffset headers,
                              std::size_t count) {
  if (auto done = put(plan, file, phoff_field(file.header().is64), headers.value); !done)
    return done;
  return put(plan, file, phnum_field(file.header().is64), count);
}

}  // namespace reprobe
