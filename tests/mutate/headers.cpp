// The ELF header, and program headers as entries of a table.
#include <fmt/format.h>

#include "tests/mutate/draft.hpp"

namespace mutate {
namespace {

bool identification(Draft& draft) { return draft.disturb_byte({4, 16}, "e_ident"); }

bool header_field(Draft& draft) { return draft.disturb(0, kEhdr[draft.random.below(13)]); }

bool entry_of_a_function(Draft& draft) {
  const auto tables = draft.sections_of(reprobe::SHT_SYMTAB);
  if (tables.empty()) return false;
  const auto symbols = draft.file.symbols(*tables[0]);
  if (!symbols || symbols->empty()) return false;
  const auto& symbol = (*symbols)[draft.random.below(symbols->size())];
  if (symbol.value.value == 0 || symbol.value == draft.file.header().entry) return false;
  draft.put(0, kEhdr[kEEntry], symbol.value.value);
  draft.told = fmt::format("e_entry is {:#x}", symbol.value.value);
  return true;
}

bool program_header_field(Draft& draft) {
  const Segment* segment = draft.pick(draft.file.segments());
  return segment != nullptr &&
         draft.disturb(segment->header_offset.value, kPhdr[draft.random.below(8)]);
}

std::uint64_t entry_size(const Draft& draft) { return draft.is64() ? 56 : 32; }

bool swapped_program_headers(Draft& draft) {
  const Segment* a = draft.pick(draft.file.segments());
  const Segment* b = draft.pick(draft.file.segments());
  if (a == nullptr || a == b) return false;
  draft.exchange(a->header_offset.value, b->header_offset.value, entry_size(draft));
  draft.told = fmt::format("program headers {} and {} change places", a->index, b->index);
  return true;
}

bool copied_program_header(Draft& draft) {
  const Segment* a = draft.pick(draft.file.segments());
  const Segment* b = draft.pick(draft.file.segments());
  if (a == nullptr || a == b) return false;
  draft.write(a->header_offset.value, draft.copy(b->header_offset.value, entry_size(draft)));
  draft.told = fmt::format("program header {} is a copy of {}", a->index, b->index);
  return true;
}

// A field of one header is another's.
bool borrowed_field(Draft& draft) {
  const Segment* a = draft.pick(draft.file.segments());
  const Segment* b = draft.pick(draft.file.segments());
  if (a == nullptr || a == b) return false;
  const Field& field = kPhdr[draft.random.below(8)];
  const std::uint64_t value = draft.get(b->header_offset.value, field);
  draft.put(a->header_offset.value, field, value);
  draft.told = fmt::format("{} of program header {} is {:#x}, as of {}", field.name, a->index,
                           value, b->index);
  return true;
}

bool program_header_of_nothing(Draft& draft) {
  const Segment* segment = draft.pick(draft.file.segments());
  if (segment == nullptr) return false;
  draft.put(segment->header_offset.value, kPhdr[kPType], 0);
  draft.told = fmt::format("program header {} is PT_NULL", segment->index);
  return true;
}

bool count_of_program_headers(Draft& draft) {
  const std::uint64_t count = draft.file.header().phnum;
  const std::uint64_t now = draft.random.one_in(2) ? count - 1 : count + 1 + draft.random.below(60);
  draft.put(0, kEhdr[kEPhnum], now);
  draft.told = fmt::format("e_phnum is {} instead of {}", now, count);
  return true;
}

// The table stands behind the file as well, where no segment maps it.
bool unmapped_table(Draft& draft) {
  const auto& header = draft.file.header();
  const std::uint64_t size = header.phnum * entry_size(draft);
  const Bytes table = draft.copy(header.phoff.value, size);
  const std::uint64_t at = draft.append(table, 8);
  draft.put(0, kEhdr[kEPhoff], at);
  draft.told = fmt::format("e_phoff is {:#x}, a copy; ", at);
  if (draft.random.one_in(2)) return true;
  return draft.disturb(at + entry_size(draft) * draft.random.below(header.phnum),
                       kPhdr[draft.random.below(8)]);
}

constexpr Kind kKinds[] = {
    {"e_ident", identification},
    {"ELF header field", header_field},
    {"e_entry of a function", entry_of_a_function},
    {"program header field", program_header_field},
    {"program headers swapped", swapped_program_headers},
    {"program header copied", copied_program_header},
    {"program header with another's field", borrowed_field},
    {"program header removed", program_header_of_nothing},
    {"e_phnum", count_of_program_headers},
    {"program headers behind the file", unmapped_table},
};

}  // namespace

std::span<const Kind> header_kinds() { return kKinds; }

}  // namespace mutate
