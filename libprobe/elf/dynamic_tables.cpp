#include "libprobe/elf/dynamic_tables.hpp"

#include <algorithm>
#include <array>

#include "libprobe/elf/codec.hpp"

namespace reprobe {
namespace {

// Generic-abi, "Relative Relocation Table": an even word is the place of a relocation, an odd one a
// bitmap over the words that follow the last place.
void for_each_relr(ByteView bytes, unsigned word, std::endian order,
                   const std::function<void(const DynamicRelocation&)>& f) {
  std::uint64_t next = 0;
  for (std::size_t i = 0; (i + 1) * word <= bytes.size(); ++i) {
    const std::uint64_t entry = load_uint(bytes, i * word, word, order);
    DynamicRelocation found;
    found.relr = true;
    found.entry = i;
    if ((entry & 1) == 0) {
      found.place = VirtAddr{entry};
      f(found);
      next = entry + word;
      continue;
    }
    for (unsigned bit = 1; bit < 8 * word; ++bit) {
      if ((entry >> bit & 1) == 0) continue;
      found.place = VirtAddr{next + (bit - 1) * std::uint64_t{word}};
      f(found);
    }
    next += (8 * std::uint64_t{word} - 1) * word;
  }
}

}  // namespace

std::vector<DynamicEntry> dynamic_entries(const ElfFile& file) {
  std::vector<DynamicEntry> entries;
  const auto segment = std::ranges::find(file.segments(), PT_DYNAMIC, &Segment::type);
  if (segment == file.segments().end()) return entries;
  const ByteView bytes = file.bytes_at(segment->vaddr, segment->filesz);
  const unsigned word = file.header().word();
  const std::endian order = file.header().order;
  for (std::size_t at = 0; bytes.size() - at >= 2 * std::size_t{word}; at += 2 * word) {
    const std::uint64_t tag = load_uint(bytes, at, word, order);
    if (tag == DT_NULL) break;
    entries.push_back(
        {tag, load_uint(bytes, at + word, word, order), VirtAddr{segment->vaddr.value + at}});
  }
  return entries;
}

const DynamicEntry* dynamic_entry(const std::vector<DynamicEntry>& entries, std::uint64_t tag) {
  const auto found = std::find_if(entries.rbegin(), entries.rend(),
                                  [&](const DynamicEntry& entry) { return entry.tag == tag; });
  return found == entries.rend() ? nullptr : &*found;
}

std::vector<DynamicTable> dynamic_tables(const ElfFile& file) {
  struct Named {
    std::uint64_t place, size;
    TableKind kind;
    bool plt;
  };
  const auto entries = dynamic_entries(file);
  const DynamicEntry* plt_kind = dynamic_entry(entries, DT_PLTREL);
  const bool plt_rela = plt_kind != nullptr && plt_kind->value == DT_RELA;
  const std::array named{
      Named{DT_RELA, DT_RELASZ, TableKind::rela, false},
      Named{DT_REL, DT_RELSZ, TableKind::rel, false},
      Named{DT_RELR, DT_RELRSZ, TableKind::relr, false},
      Named{DT_JMPREL, DT_PLTRELSZ, plt_rela ? TableKind::rela : TableKind::rel, true}};
  std::vector<DynamicTable> tables;
  for (const Named& name : named) {
    const DynamicEntry* place = dynamic_entry(entries, name.place);
    const DynamicEntry* size = dynamic_entry(entries, name.size);
    if (place == nullptr || size == nullptr) continue;
    DynamicTable table;
    table.kind = name.kind;
    table.plt = name.plt;
    table.address = VirtAddr{place->value};
    table.bytes = file.bytes_at(table.address, Size{size->value});
    table.whole = table.bytes.size() == size->value;
    tables.push_back(table);
  }
  return tables;
}

std::uint64_t entry_size(const ElfFile& file, TableKind kind) {
  const std::uint64_t word = file.header().word();
  return kind == TableKind::relr ? word : kind == TableKind::rel ? 2 * word : 3 * word;
}

void for_each_relocation(const ElfFile& file, const DynamicTable& table,
                         const std::function<void(const DynamicRelocation&)>& f) {
  const ElfHeader& header = file.header();
  if (table.kind == TableKind::relr) {
    return for_each_relr(table.bytes, header.word(), header.order, f);
  }
  const auto size = static_cast<std::size_t>(entry_size(file, table.kind));
  with_codec(header.is64, header.order, [&](auto codec) {
    using Codec = decltype(codec);
    for (std::size_t i = 0; (i + 1) * size <= table.bytes.size(); ++i) {
      const Relocation read =
          Codec::relocation(table.bytes.subspan(i * size, size), table.kind == TableKind::rela);
      DynamicRelocation found;
      found.place = read.offset;
      found.type = read.type;
      found.symbol = read.symbol;
      found.addend = read.addend;
      found.entry = i;
      f(found);
    }
  });
}

}  // namespace reprobe
