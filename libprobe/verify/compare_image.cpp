#include "libprobe/verify/compare_image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

#include "libprobe/code/cfi_rows.hpp"
#include "libprobe/code/unwind_index.hpp"
#include "libprobe/notes/index.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/verify/compare_stub_symbols.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {

void ImageComparer::compare_undo(std::string_view section) {
  const auto plan = plan_undo(after_, section);
  const auto original = plan ? apply(*plan, after_.source()) : tl::unexpected(plan.error());
  const auto bytes =
      before_.source().slice(FileOffset{0}, Size{before_.source().size()}, "the original");
  if (!original || !bytes || !std::ranges::equal(*original, *bytes)) {
    out_.push_back(verify_finding("verify-undo", "the record does not give the original back"));
  }
}

// The loaded image: every old segment with its old bytes, one may have grown; what is new lies
// elsewhere.
void ImageComparer::compare_segments() {
  for (const Segment& old : before_.segments()) {
    if (old.type != PT_LOAD) continue;
    const auto same = [&](const Segment& now) {
      return now.type == PT_LOAD && now.vaddr == old.vaddr && now.offset == old.offset &&
             now.flags == old.flags && now.align == old.align && now.filesz >= old.filesz &&
             now.memsz >= old.memsz && (now.memsz == old.memsz || old.memsz == old.filesz);
    };
    if (std::ranges::none_of(after_.segments(), same)) {
      out_.push_back(verify_finding("verify-segment",
                                    fmt::format("the segment at {:#x} changed", old.vaddr.value)));
    }
  }
  for (const std::uint32_t type :
       {PT_INTERP, PT_NOTE, PT_DYNAMIC, PT_TLS, PT_GNU_RELRO, PT_GNU_STACK, PT_GNU_PROPERTY}) {
    const bool by_place = type == PT_TLS || type == PT_GNU_RELRO || type == PT_GNU_STACK;
    if (by_place ? !same_places(type) : texts_of(before_, type) != texts_of(after_, type)) {
      out_.push_back(verify_finding(
          "verify-segment", fmt::format("a program header of type {:#x} means another", type)));
    }
  }
}

// These stay where they are, and the loaded bytes are compared as those of PT_LOAD: mold states the
// offset 0 for those that begin with .tbss.
bool ImageComparer::same_places(std::uint32_t type) const {
  const auto places = [&](const ElfFile& file) {
    std::vector<std::array<std::uint64_t, 6>> all;
    for (const Segment& s : file.segments()) {
      if (s.type == type)
        all.push_back(
            {s.flags, s.offset.value, s.vaddr.value, s.filesz.value, s.memsz.value, s.align.value});
    }
    return all;
  };
  return places(before_) == places(after_);
}

// patchelf 0.14 leaves a PT_GNU_PROPERTY behind that lies in the program headers it added to.
bool ImageComparer::in_old_headers(const Segment& segment) const {
  const ElfHeader& header = before_.header();
  return segment.offset < FileOffset{header.phoff.value + header.phnum * header.phentsize} &&
         segment.offset.value + segment.filesz.value > header.phoff.value;
}

// What the segments of a type hold, put together: two that touch may have become one. The index
// is compared with the notes.
Bytes ImageComparer::texts_of(const ElfFile& file, std::uint32_t type) const {
  const auto index = type == PT_NOTE ? find_index(file) : std::nullopt;
  Bytes bytes;
  for (const Segment& segment : file.segments()) {
    if (segment.type != type || in_old_headers(segment)) continue;
    const auto view = file.source().slice(segment.offset, segment.filesz, "a segment");
    if (!view) continue;
    bytes.insert(bytes.end(), view->begin(), view->end());
    if (!index || index->segment != segment.index) continue;
    const auto at = bytes.end() - static_cast<std::ptrdiff_t>(segment.filesz.value) +
                    static_cast<std::ptrdiff_t>(index->offset.value - segment.offset.value);
    std::fill_n(at, index->size.value, std::byte{0});
  }
  return bytes;
}

// Each function unwinds as it did, wherever its FDE stands now.
void ImageComparer::compare_unwind() {
  const auto old = read_unwind_index(before_);
  const auto now = read_unwind_index(after_);
  if (!old || !now) {
    if (old) out_.push_back(verify_finding("verify-unwind", "the unwind tables cannot be read"));
    return;
  }
  if (now->found == UnwindIndex::Found::by_registration ||
      old->found == UnwindIndex::Found::by_registration) {
    return;  // the functions' own records are not touched
  }
  std::optional<CfiCie> old_cie;
  std::optional<CfiCie> new_cie;
  for (const UnwindEntry& entry : old->entries) {
    const auto after = std::ranges::upper_bound(now->entries, entry.start, {}, &UnwindEntry::start);
    if (after == now->entries.begin()) return unwind_differs(entry.start);
    const UnwindEntry& found = *std::prev(after);
    if (found.start == entry.start && found.fde == entry.fde) continue;
    const auto a = read_fde(before_, entry.fde, old_cie);
    const auto b = read_fde(after_, found.fde, new_cie);
    if (!a || !b) return unwind_differs(entry.start);
    const auto rows_a = read_rows(before_, *old_cie, *a);
    const auto rows_b = read_rows(after_, *new_cie, *b);
    if (!rows_a || !rows_b || a->has_lsda || b->has_lsda) return unwind_differs(entry.start);
    for (const PlacedRow& row : rows_a->rows) {
      if (!in_range(row.start.value, b->start.value, b->size.value) ||
          !(rows_b->at(row.start) == row.row)) {
        return unwind_differs(row.start);
      }
    }
  }
  if (old->table) {
    allow(old->table->entries, Size{old->entries.size() * kUnwindIndexEntry});
  }
}

void ImageComparer::unwind_differs(VirtAddr at) {
  out_.push_back(
      verify_finding("verify-unwind", fmt::format("{:#x} unwinds in another way", at.value)));
}

void ImageComparer::allow(VirtAddr at, Size size) {
  if (const auto offset = before_.offset_of(at)) {
    allow(*offset, size);
  }
}

// What may differ otherwise: headers, whose meaning was compared.
void ImageComparer::allow_headers() {
  const auto& header = before_.header();
  allowed_.push_back({0, header.is64 ? 64U : 52U});
  const auto& now = after_.header();
  const std::uint64_t table = now.phoff.value;
  allowed_.push_back({table, table + now.phnum * now.phentsize});
  allowed_.push_back({header.phoff.value, header.phoff.value + header.phnum * header.phentsize});
  allowed_.push_back({header.shoff.value, header.shoff.value + header.shnum * header.shentsize});
  // What the index says is compared with the notes.
  if (const auto index = find_index(before_)) {
    allowed_.push_back({index->offset.value, index->offset.value + index->size.value});
  }
  for (const Section& section : before_.sections()) {
    const Section* moved = after_.section_at(section.index);
    const bool gone = moved != nullptr && moved->offset != section.offset;
    // What stood behind the program headers may have made room for one more.
    const bool made_room = gone && section.allocated() && !section.executable() &&
                           section.type != SHT_NOBITS && same_contents(section, *moved);
    // compare_stub_symbols() looks at a table that moved.
    const bool symbols = section.type == SHT_SYMTAB && moved != nullptr &&
                         (gone || same_symbols(before_, after_, section));
    if (made_room || symbols) {
      allowed_.push_back({section.offset.value, section.offset.value + section.size.value});
    }
  }
}

bool ImageComparer::same_contents(const Section& old, const Section& now) const {
  const auto a = before_.contents(old);
  const auto b = after_.contents(now);
  return a && b && std::ranges::equal(*a, *b);
}

void ImageComparer::compare_bytes() {
  allow_headers();
  std::ranges::sort(allowed_, {}, &Range::begin);
  auto found = first_difference(before_, after_, allowed_);
  // The gap behind the code is zeros in the original, and its segment covers it now.
  while (found && found->bytes && is_new_room(found->at)) {
    found = first_difference(before_, after_, allowed_, room_end(found->at));
  }
  if (found) {
    out_.push_back(difference_finding(*found, "none that sleds need",
                                      "the result is shorter than the original"));
  }
}

// In a segment of the result, and in none of the original.
bool ImageComparer::is_new_room(std::uint64_t offset) const {
  const auto holds = [&](const Segment& s) {
    return s.type == PT_LOAD && in_range(offset, s.offset.value, s.filesz.value);
  };
  return std::ranges::none_of(before_.segments(), holds) &&
         std::ranges::any_of(after_.segments(), holds);
}

std::uint64_t ImageComparer::room_end(std::uint64_t offset) const {
  std::uint64_t end = offset + 1;
  for (const Segment& s : after_.segments()) {
    if (s.type == PT_LOAD && in_range(offset, s.offset.value, s.filesz.value)) {
      end = std::max(end, s.offset.value + s.filesz.value);
    }
  }
  return end;
}

void ImageComparer::allow(FileOffset at, Size size) {
  allowed_.push_back({at.value, at.value + size.value});
}

void ImageComparer::allow_notes() {
  for (const Section& section : before_.sections()) {
    if (section.type == SHT_NOTE && section.name == kStapsdtSection)
      allow(section.offset, section.size);
  }
}

}  // namespace reprobe
