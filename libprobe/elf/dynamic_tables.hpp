// The dynamic section entry by entry, and the relocations that it leads to: what the dynamic linker
// does to a file, found as it finds it, through PT_DYNAMIC.
// Format: System V ABI, chapter 5, "Dynamic Section" and "Relocation Table" (DT_RELR, generic-abi
// 2018); DT_RELACOUNT, DT_RELCOUNT: the GNU extension of glibc's and every linker's elf.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "libprobe/elf/file.hpp"

namespace reprobe {

inline constexpr std::uint64_t DT_NULL = 0, DT_PLTRELSZ = 2, DT_RELA = 7, DT_RELASZ = 8,
                               DT_RELAENT = 9, DT_REL = 17, DT_RELSZ = 18, DT_RELENT = 19,
                               DT_PLTREL = 20, DT_TEXTREL = 22, DT_JMPREL = 23, DT_FLAGS = 30,
                               DT_RELRSZ = 35, DT_RELR = 36, DT_RELRENT = 37,
                               DT_RELACOUNT = 0x6ffffff9, DT_RELCOUNT = 0x6ffffffa;
inline constexpr std::uint64_t DF_TEXTREL = 4;

struct DynamicEntry {
  std::uint64_t tag{};
  std::uint64_t value{};
  VirtAddr address;  // of the entry itself
};

// The entries before DT_NULL. Empty where there is no PT_DYNAMIC, or its bytes are not in the file.
[[nodiscard]] std::vector<DynamicEntry> dynamic_entries(const ElfFile& file);

// The last entry of that tag counts (glibc elf_get_dynamic_info); nullptr where there is none.
[[nodiscard]] const DynamicEntry* dynamic_entry(const std::vector<DynamicEntry>& entries,
                                                std::uint64_t tag);

enum class TableKind { rel, rela, relr };

// One of the tables that the dynamic section names. `plt`: DT_JMPREL's.
struct DynamicTable {
  TableKind kind{};
  bool plt{};
  VirtAddr address;
  ByteView bytes;  // cut at the end of the segment's bytes in the file
  bool whole{};    // all that the dynamic section states is there
};

[[nodiscard]] std::vector<DynamicTable> dynamic_tables(const ElfFile& file);

// Bytes of an entry.
[[nodiscard]] std::uint64_t entry_size(const ElfFile& file, TableKind kind);

// One word of memory that the dynamic linker writes.
struct DynamicRelocation {
  VirtAddr place;
  std::uint32_t type{};
  std::uint32_t symbol{};
  std::optional<std::int64_t> addend;  // nothing: in place
  bool relr{};                         // type and symbol say nothing then
  std::size_t entry{};                 // number of the entry in its table
};

// Calls `f` for each relocation of the table, in its order. A RELR word gives up to 63.
void for_each_relocation(const ElfFile& file, const DynamicTable& table,
                         const std::function<void(const DynamicRelocation&)>& f);

}  // namespace reprobe
