#include "libprobe/verify/compare_image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "libprobe/notes/index.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/verify/code_sections.hpp"
#include "libprobe/verify/compare_stub_symbols.hpp"
#include "libprobe/verify/compare_unwind.hpp"
#include "libprobe/verify/leftovers.hpp"
#include "libprobe/verify/new_memory.hpp"
#include "libprobe/verify/room_headers.hpp"
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

void ImageComparer::compare_segments() {
  compare_room_headers(before_, after_, std::nullopt, out_);
  compare_code_sections(before_, after_, out_);
}

void ImageComparer::compare_unwind() {
  if (const auto table = reprobe::compare_unwind(before_, after_, out_)) {
    allow(VirtAddr{table->begin}, Size{table->end - table->begin});
  }
}

void ImageComparer::allow(VirtAddr at, Size size) {
  const auto offset = before_.offset_of(at);
  if (!offset) return;
  const Range range{offset->value, offset->value + size.value};
  allowed_.push_back(range);
  claims_.bytes.push_back(range);
}

// What may differ otherwise: headers, whose meaning was compared.
void ImageComparer::allow_headers() {
  const auto& header = before_.header();
  allowed_.push_back({0, header.is64 ? 64U : 52U});
  if (const auto table = table_in_place(before_, after_, out_)) {
    allowed_.push_back(*table);
    claims_.bytes.push_back(*table);
  }
  allowed_.push_back({header.shoff.value, header.shoff.value + header.shnum * header.shentsize});
  // What the index says is compared with the notes.
  if (const auto index = find_index(before_)) {
    const Range range{index->offset.value, index->offset.value + index->size.value};
    allowed_.push_back(range);
    claims_.bytes.push_back(range);
  }
  // The gap behind the code is zeros in the original, and its segment covers it now.
  for (const Range& grown : grown_ranges(before_, after_, out_)) allowed_.push_back(grown);
  std::uint64_t budget = before_.source().size();  // tables may overlap in a hostile file
  bool room = false, left = false;
  for (const Section& section : before_.sections()) {
    const Section* moved = after_.section_at(section.index);
    const bool known = section.size.value <= budget;
    const bool gone = moved != nullptr && moved->offset != section.offset;
    // What stood behind the program headers may have made room for one more.
    const bool made_room = known && gone && section.allocated() && !section.executable() &&
                           section.type != SHT_NOBITS && same_contents(section, *moved);
    // compare_stub_symbols() looks at a table that moved.
    const bool symbols = known && section.type == SHT_SYMTAB && moved != nullptr &&
                         (gone || same_symbols(before_, after_, section));
    if (known && section.type == SHT_SYMTAB) budget -= section.size.value;
    room = room || made_room;
    left = left || (known && section.type == SHT_SYMTAB && !symbols &&
                    before_.symbol_table(section).has_value());
    if (made_room || symbols) {
      allowed_.push_back({section.offset.value, section.offset.value + section.size.value});
    }
  }
  if (room && left) {
    out_.push_back(verify_finding("verify-section", "symbols do not follow what has moved"));
  }
}

bool ImageComparer::same_contents(const Section& old, const Section& now) const {
  const auto a = before_.contents(old);
  const auto b = after_.contents(now);
  return a && b && std::ranges::equal(*a, *b);
}

void ImageComparer::compare_bytes() {
  allow_headers();
  compare_process(before_, after_, claims_, out_);
  compare_new_memory(before_, after_, new_sections(), out_);
  compare_appended(before_, after_, out_);
  std::ranges::sort(allowed_, {}, &Range::begin);
  if (const auto found = first_difference(before_, after_, allowed_)) {
    out_.push_back(difference_finding(*found, "none that sleds need",
                                      "the result is shorter than the original"));
  }
}

// Of the loaded sections that the original lacks, the bytes of the file.
std::vector<Range> ImageComparer::new_sections() const {
  std::vector<Range> ranges;
  for (const Section& section : after_.sections()) {
    if (!section.allocated() || section.index < before_.sections().size()) continue;
    ranges.push_back({section.offset.value, section.offset.value + section.size.value});
  }
  return ranges;
}

// Notes are in memory where their section is.
void ImageComparer::allow_note(const Section& section, Range range) {
  allowed_.push_back(range);
  if (section.allocated()) claims_.bytes.push_back(range);
}

void ImageComparer::allow(FileOffset at, Size size) {
  for (const Section& section : before_.sections()) {
    if (!holds_notes(section) || !in_range(at.value, section.offset.value, section.size.value) ||
        size.value > section.size.value - (at.value - section.offset.value)) {
      continue;
    }
    return allow_note(section, {at.value, at.value + size.value});
  }
}

void ImageComparer::allow_notes() {
  for (const Section& section : before_.sections()) {
    if (section.type == SHT_NOTE && section.name == kStapsdtSection) {
      allow_note(section, {section.offset.value, section.offset.value + section.size.value});
    }
  }
}

}  // namespace reprobe
