// Section headers: what debuggers, strip and readers of files see.
#include <fmt/format.h>

#include "tests/mutate/draft.hpp"

namespace mutate {
namespace {

std::uint64_t entry_size(const Draft& draft) { return draft.is64() ? 64 : 40; }

bool section_header_field(Draft& draft) {
  const Section* section = draft.any_section();
  if (section == nullptr) return false;
  draft.told = fmt::format("section {}: ", section->name);
  return draft.disturb(section->header_offset.value, kShdr[draft.random.below(10)]);
}

bool first_header(Draft& draft) {
  const Section* section = draft.file.section_at(0);
  if (section == nullptr) return false;
  return draft.disturb(section->header_offset.value, kShdr[draft.random.below(10)]);
}

bool borrowed_field(Draft& draft) {
  const Section* a = draft.any_section();
  const Section* b = draft.any_section();
  if (a == nullptr || b == nullptr || a == b) return false;
  const Field& field = kShdr[draft.random.below(10)];
  const std::uint64_t value = draft.get(b->header_offset.value, field);
  if (value == draft.get(a->header_offset.value, field)) return false;
  draft.put(a->header_offset.value, field, value);
  draft.told = fmt::format("{} of {} is that of {}", field.name, a->name, b->name);
  return true;
}

bool swapped_headers(Draft& draft) {
  const Section* a = draft.any_section();
  const Section* b = draft.any_section();
  if (a == nullptr || b == nullptr || a == b) return false;
  draft.exchange(a->header_offset.value, b->header_offset.value, entry_size(draft));
  draft.told = fmt::format("headers of {} and {} change places", a->name, b->name);
  return true;
}

// The header leads to a copy behind the file; what stands at the old place may be changed.
bool led_to_a_copy(Draft& draft) {
  const Section* section = draft.any_section();
  if (section == nullptr || section->nobits() || section->size.value == 0) return false;
  const Bytes copy = draft.copy(section->offset.value, section->size.value);
  if (copy.empty()) return false;
  const std::uint64_t at = draft.append(copy, 16);
  draft.put(section->header_offset.value, kShdr[kShOffset], at);
  draft.told = fmt::format("sh_offset of {} leads to a copy; ", section->name);
  if (draft.random.one_in(4)) return true;
  const std::uint64_t changed = draft.random.one_in(2) ? section->offset.value : at;
  return draft.disturb_byte({changed, changed + copy.size()}, "byte");
}

bool removed_header(Draft& draft) {
  const std::uint64_t count = draft.file.header().shnum;
  if (count < 2) return false;
  if (draft.random.one_in(2)) {
    draft.put(0, kEhdr[kEShnum], count - 1);
    draft.told = "the last section header is gone";
    return true;
  }
  const Section* section = draft.any_section();
  if (section == nullptr) return false;
  draft.write(section->header_offset.value, Bytes(entry_size(draft)));
  draft.told = fmt::format("the header of {} is zeros", section->name);
  return true;
}

// The table stands behind the file, with one more or with a field changed.
bool moved_table(Draft& draft) {
  const auto& header = draft.file.header();
  if (header.shnum == 0) return false;
  const std::uint64_t size = entry_size(draft);
  Bytes table = draft.copy(header.shoff.value, header.shnum * size);
  const bool more = draft.random.one_in(2);
  if (more) {
    const Section* like = draft.any_section();
    if (like == nullptr) return false;
    const Bytes entry = draft.copy(like->header_offset.value, size);
    table.insert(table.end(), entry.begin(), entry.end());
  }
  const std::uint64_t at = draft.append(table, 8);
  draft.put(0, kEhdr[kEShoff], at);
  if (more) draft.put(0, kEhdr[kEShnum], header.shnum + 1);
  draft.told = fmt::format("e_shoff is {:#x}, {}; ", at, more ? "one header more" : "a copy");
  if (draft.random.one_in(2)) return true;
  return draft.disturb(at + size * draft.random.below(header.shnum + (more ? 1 : 0)),
                       kShdr[draft.random.below(10)]);
}

bool names_section(Draft& draft) {
  const std::uint64_t count = draft.file.header().shnum;
  const std::uint64_t now = draft.random.below(count + 2);
  if (now == draft.file.header().shstrndx) return false;
  draft.put(0, kEhdr[kEShstrndx], now);
  draft.told = fmt::format("e_shstrndx is {}", now);
  return true;
}

bool character_of_a_name(Draft& draft) {
  const auto* names =
      draft.file.section_at(static_cast<std::uint32_t>(draft.file.header().shstrndx));
  if (names == nullptr) return false;
  return draft.disturb_byte({names->offset.value, names->offset.value + names->size.value},
                            "section names");
}

// Another spelling place of the same name, or of a suffix of it.
bool name_offset(Draft& draft) {
  const Section* section = draft.any_section();
  if (section == nullptr) return false;
  const std::uint64_t at = section->header_offset.value;
  draft.put(at, kShdr[kShName], draft.get(at, kShdr[kShName]) + 1 + draft.random.below(4));
  draft.told = fmt::format("sh_name of {} leads a little further", section->name);
  return true;
}

// A name that means something to those who read the file, behind a copy of the names.
bool special_name(Draft& draft) {
  constexpr std::string_view kNames[] = {
      ".reprobe.undo", ".reprobe.undo.site", ".reprobe.undo.on", ".text.reprobe",
      ".note.stapsdt", ".stapsdt.base",      ".probes",          ".note.reprobe",
      ".note.foreign", ".stapsdt.loaded",    ".eh_frame",        ".debug_frame"};
  const auto* names =
      draft.file.section_at(static_cast<std::uint32_t>(draft.file.header().shstrndx));
  const Section* section = draft.any_section();
  if (names == nullptr || section == nullptr) return false;
  const std::string_view name = kNames[draft.random.below(std::size(kNames))];
  Bytes copy = draft.copy(names->offset.value, names->size.value);
  const std::uint64_t at = copy.size();
  const auto text = reprobe::as_bytes(name);
  copy.insert(copy.end(), text.begin(), text.end());
  copy.push_back(std::byte{0});
  draft.put(names->header_offset.value, kShdr[kShOffset], draft.append(copy, 1));
  draft.put(names->header_offset.value, kShdr[kShSize], copy.size());
  draft.put(section->header_offset.value, kShdr[kShName], at);
  draft.told = fmt::format("section {} is called {}", section->name, name);
  return true;
}

constexpr Kind kKinds[] = {
    {"section with a special name", special_name},
    {"section header field", section_header_field},
    {"section header 0", first_header},
    {"section header with another's field", borrowed_field},
    {"section headers swapped", swapped_headers},
    {"sh_offset to a copy", led_to_a_copy},
    {"section header removed", removed_header},
    {"section header table moved", moved_table},
    {"e_shstrndx", names_section},
    {"character of a section name", character_of_a_name},
    {"sh_name", name_offset},
};

}  // namespace

std::span<const Kind> section_kinds() { return kKinds; }

}  // namespace mutate
