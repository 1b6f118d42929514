// The dynamic section, symbols, relocations and strings.
#include <fmt/format.h>

#include "tests/mutate/draft.hpp"

namespace mutate {
namespace {

using reprobe::PT_DYNAMIC;

// Entries of the dynamic section, up to its end.
Span dynamic(Draft& draft) {
  const Segment* segment = draft.any_segment(PT_DYNAMIC);
  if (segment == nullptr) return {};
  return {segment->offset.value, segment->offset.value + segment->filesz.value};
}

// The offset of a random entry of a table; `count` of them are there.
std::uint64_t any_entry(Draft& draft, const Span& table, std::uint64_t size) {
  return table.begin + size * draft.random.below(table.size() / size);
}

bool dynamic_entry(Draft& draft) {
  const Span table = dynamic(draft);
  if (table.size() == 0) return false;
  const std::uint64_t at = any_entry(draft, table, 2 * draft.word());
  return draft.disturb(at + draft.word() * draft.random.below(2), draft.word(), "dynamic entry");
}

bool swapped_dynamic_entries(Draft& draft) {
  const Span table = dynamic(draft);
  if (table.size() == 0) return false;
  const unsigned size = 2 * draft.word();
  const std::uint64_t a = any_entry(draft, table, size), b = any_entry(draft, table, size);
  if (draft.copy(a, size) == draft.copy(b, size)) return false;
  draft.exchange(a, b, size);
  draft.told = fmt::format("dynamic entries at {:#x} and {:#x} change places", a, b);
  return true;
}

// DT_NULL gives way to an entry that says something: a library that is loaded, a function that is
// called, a flag.
bool new_dynamic_entry(Draft& draft) {
  const Span table = dynamic(draft);
  const unsigned word = draft.word();
  for (std::uint64_t at = table.begin; at + 4 * word <= table.end; at += 2 * word) {
    if (draft.get(at, word) != 0) continue;
    const std::uint64_t tags[] = {1, 12, 13, 15, 16, 21, 22, 24, 29, 30, 0x6ffffffb};
    const std::uint64_t tag = tags[draft.random.below(11)];
    std::uint64_t value = draft.random.below(64);
    if (tag == 12 || tag == 13) value = draft.file.header().entry.value;
    draft.put(at, word, tag);
    draft.put(at + word, word, value);
    draft.told = fmt::format("a dynamic entry {:#x} with {:#x} is new", tag, value);
    return true;
  }
  return false;
}

bool removed_dynamic_entry(Draft& draft) {
  const Span table = dynamic(draft);
  if (table.size() == 0) return false;
  const unsigned size = 2 * draft.word();
  const std::uint64_t at = any_entry(draft, table, size);
  if (draft.get(at, draft.word()) == 0) return false;
  const Bytes rest = draft.copy(at + size, table.end - at - size);
  draft.write(at, rest);
  draft.told = fmt::format("the dynamic entry at {:#x} is gone", at);
  return true;
}

bool initialiser(Draft& draft) {
  const Section* arrays[] = {draft.file.section(".init_array"), draft.file.section(".fini_array"),
                             draft.file.section(".got"), draft.file.section(".got.plt"),
                             draft.file.section(".data.rel.ro")};
  const Section* section = arrays[draft.random.below(5)];
  if (section == nullptr || section->size.value < draft.word()) return false;
  const Span span{section->offset.value, section->offset.value + section->size.value};
  return draft.disturb(any_entry(draft, span, draft.word()), draft.word(), section->name);
}

const Section* any_of(Draft& draft, std::initializer_list<std::uint32_t> types) {
  std::vector<const Section*> found;
  for (const std::uint32_t type : types) {
    for (const Section* section : draft.sections_of(type)) found.push_back(section);
  }
  return found.empty() ? nullptr : found[draft.random.below(found.size())];
}

constexpr Field kSym[] = {{"st_name", 0, 4, 0, 4},   {"st_info", 4, 1, 12, 1},
                          {"st_other", 5, 1, 13, 1}, {"st_shndx", 6, 2, 14, 2},
                          {"st_value", 8, 8, 4, 4},  {"st_size", 16, 8, 8, 4}};

Span contents(const Section& section) {
  return {section.offset.value, section.offset.value + section.size.value};
}

bool symbol_field(Draft& draft) {
  const Section* table = any_of(draft, {reprobe::SHT_SYMTAB, reprobe::SHT_DYNSYM});
  const std::uint64_t size = draft.is64() ? 24 : 16;
  if (table == nullptr || table->size.value < size) return false;
  draft.told = table->name + ": ";
  return draft.disturb(any_entry(draft, contents(*table), size), kSym[draft.random.below(6)]);
}

bool swapped_symbols(Draft& draft) {
  const Section* table = any_of(draft, {reprobe::SHT_SYMTAB, reprobe::SHT_DYNSYM});
  const std::uint64_t size = draft.is64() ? 24 : 16;
  if (table == nullptr || table->size.value < size) return false;
  const std::uint64_t a = any_entry(draft, contents(*table), size);
  const std::uint64_t b = any_entry(draft, contents(*table), size);
  if (a == b) return false;
  draft.exchange(a, b, size);
  draft.told = fmt::format("symbols at {:#x} and {:#x} change places", a, b);
  return true;
}

// Of a symbol in a section that the rewrite added, or with a name that it gave.
bool new_symbol(Draft& draft) {
  const std::uint64_t size = draft.is64() ? 24 : 16;
  for (const Section* table : draft.sections_of(reprobe::SHT_SYMTAB)) {
    std::vector<std::uint64_t> found;
    for (std::uint64_t at = table->offset.value; at + size <= contents(*table).end; at += size) {
      for (const Span& span : draft.changed) {
        if (at < span.end && at + size > span.begin) found.push_back(at);
      }
    }
    if (!found.empty())
      return draft.disturb(found[draft.random.below(found.size())], kSym[draft.random.below(6)]);
  }
  return false;
}

std::uint64_t relocation_size(const Draft& draft, const Section& table) {
  if (table.type == reprobe::SHT_RELR) return draft.word();
  return draft.word() * (table.type == reprobe::SHT_RELA ? 3U : 2U);
}

const Section* relocations(Draft& draft) {
  const Section* table = any_of(draft, {reprobe::SHT_REL, reprobe::SHT_RELA, reprobe::SHT_RELR});
  return table != nullptr && table->size.value >= relocation_size(draft, *table) ? table : nullptr;
}

bool relocation_field(Draft& draft) {
  const Section* table = relocations(draft);
  if (table == nullptr) return false;
  const std::uint64_t size = relocation_size(draft, *table);
  const std::uint64_t at = any_entry(draft, contents(*table), size);
  return draft.disturb(at + draft.word() * draft.random.below(size / draft.word()), draft.word(),
                       table->name);
}

bool swapped_relocations(Draft& draft) {
  const Section* table = relocations(draft);
  if (table == nullptr) return false;
  const std::uint64_t size = relocation_size(draft, *table);
  const std::uint64_t a = any_entry(draft, contents(*table), size);
  const std::uint64_t b = any_entry(draft, contents(*table), size);
  if (a == b) return false;
  draft.exchange(a, b, size);
  draft.told = fmt::format("relocations of {} at {:#x} and {:#x} change places", table->name, a, b);
  return true;
}

bool removed_relocation(Draft& draft) {
  const Section* table = relocations(draft);
  if (table == nullptr) return false;
  const std::uint64_t size = relocation_size(draft, *table);
  const std::uint64_t at = any_entry(draft, contents(*table), size);
  draft.write(at, Bytes(size));
  draft.told = fmt::format("the relocation at {:#x} of {} is zeros", at, table->name);
  return true;
}

bool character_of_a_string(Draft& draft) {
  const Section* table = any_of(draft, {reprobe::SHT_STRTAB});
  return table != nullptr && draft.disturb_byte(contents(*table), table->name);
}

// Symbol versions, hash tables and groups.
bool small_table(Draft& draft) {
  const Section* table = any_of(draft, {0x6fffffff, 0x6ffffffe, 0x6ffffffd, 0x6ffffff6,
                                        reprobe::SHT_HASH, reprobe::SHT_SYMTAB_SHNDX});
  return table != nullptr && draft.disturb_byte(contents(*table), table->name);
}

constexpr Kind kKinds[] = {
    {"dynamic entry", dynamic_entry},
    {"dynamic entries swapped", swapped_dynamic_entries},
    {"dynamic entry added", new_dynamic_entry},
    {"dynamic entry removed", removed_dynamic_entry},
    {"initialiser or pointer", initialiser},
    {"symbol field", symbol_field},
    {"symbols swapped", swapped_symbols},
    {"symbol of the rewrite", new_symbol},
    {"relocation field", relocation_field},
    {"relocations swapped", swapped_relocations},
    {"relocation removed", removed_relocation},
    {"character of a string table", character_of_a_string},
    {"symbol version or hash", small_table},
};

}  // namespace

std::span<const Kind> table_kinds() { return kKinds; }

}  // namespace mutate
