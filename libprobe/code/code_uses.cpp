#include "libprobe/code/code_uses.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>

#include "libprobe/elf/dynamic_tables.hpp"

namespace reprobe {
namespace {

// Segments of a sane file do not overlap; all together are read as if they were a few times the
// file.
constexpr std::uint64_t kMaxPasses = 4;

// Sections whose words name instructions that somebody patches while the program runs: GCC and
// LLVM -fpatchable-function-entry, LLVM XRay, GCC -mrecord-mcount, and the tables of Linux that
// programs have taken over (static keys and calls, alternatives, bugs, lock prefixes, retpolines).
constexpr std::array<std::string_view, 14> kPatchTables{"__patchable_function_entries",
                                                        "xray_instr_map",
                                                        "__mcount_loc",
                                                        "__jump_table",
                                                        ".static_call_sites",
                                                        ".altinstructions",
                                                        ".parainstructions",
                                                        "__bug_table",
                                                        ".smp_locks",
                                                        ".retpoline_sites",
                                                        ".return_sites",
                                                        ".call_sites",
                                                        ".ibt_endbr_seal",
                                                        "__tracepoints_ptrs"};

bool is_patch_table(const Section& section) {
  return std::ranges::find(kPatchTables, section.name) != kPatchTables.end();
}

// Relocations of the x86-64 psABI, table 4.9, that write four bytes or fewer; all others count as
// eight.
bool writes_four(std::uint32_t type) {
  constexpr std::array<std::uint32_t, 4> kTypes{2, 4, 10, 11};  // PC32, PLT32, 32, 32S
  return std::ranges::find(kTypes, type) != kTypes.end();
}

// Sections whose words have a meaning of their own, read elsewhere, and never a distance that
// somebody follows into a function's middle.
bool has_format(const Section& section) {
  constexpr std::array<std::uint32_t, 8> kTypes{SHT_SYMTAB,  SHT_STRTAB, SHT_RELA,   SHT_HASH,
                                                SHT_DYNAMIC, SHT_REL,    SHT_DYNSYM, SHT_RELR};
  constexpr std::array<std::string_view, 4> kNames{".eh_frame", ".eh_frame_hdr", ".interp",
                                                   ".note.stapsdt"};
  return std::ranges::find(kTypes, section.type) != kTypes.end() ||
         std::ranges::find(kNames, section.name) != kNames.end() ||
         section.name.starts_with(".gnu.") || section.name.starts_with(".gcc_except_table") ||
         section.name.starts_with(".note.") || section.name.ends_with(".reprobe");
}

std::uint64_t sign_extended(std::uint64_t word) { return (word ^ 0x80000000U) - 0x80000000U; }

class UseScan {
 public:
  UseScan(const ElfFile& file, const AddressRanges& ranges, CodeUses& out)
      : file_(file), ranges_(ranges), out_(out) {}

  void operands() {
    std::uint64_t budget = file_.source().size() * kMaxPasses;
    for (const Segment& segment : file_.segments()) {
      if (segment.type != PT_LOAD || (segment.flags & PF_X) == 0) continue;
      const auto bytes = file_.source().slice(segment.offset, segment.filesz, "a segment");
      if (!bytes || segment.filesz.value > budget) return unread("the bytes of a segment");
      budget -= segment.filesz.value;
      operands_in(*bytes, segment.vaddr.value);
    }
  }

  void data_sections() {
    std::uint64_t budget = file_.source().size() * kMaxPasses;
    for (const Section& section : file_.sections()) {
      if (!section.allocated() || section.executable() || section.nobits()) continue;
      if (has_format(section)) continue;
      const auto bytes = file_.contents(section);
      if (!bytes || section.size.value > budget) return unread("the bytes of " + section.name);
      budget -= section.size.value;
      const bool table = is_patch_table(section);
      if (table) tables_.push_back({section.addr, section.size});
      distances_in(*bytes, section.addr.value,
                   table ? CodeUseKind::patched : CodeUseKind::distance);
      if (table) words_in(*bytes, section.addr.value);
    }
  }

  // What the loader writes, and where. Without a dynamic section only a static program's start-up
  // code relocates, and only pointers in data (IRELATIVE).
  void relocations() {
    for (const DynamicTable& table : dynamic_tables(file_)) {
      if (!table.whole) unread("the relocations of the dynamic section");
      for_each_relocation(file_, table, [&](const DynamicRelocation& r) {
        add(r.place.value, r.place.value, CodeUseKind::place, writes_four(r.type) ? 4 : 8);
        if (!in_table(r.place)) return;
        if (r.addend) add_patched(static_cast<std::uint64_t>(*r.addend), r.place);
        if (const auto word = word_at(r.place)) add_patched(*word, r.place);
      });
    }
    for (const DynamicEntry& entry : dynamic_entries(file_)) {
      // Bionic's packed relocations, DT_ANDROID_REL, _RELA and _RELR (linker.h).
      if (entry.tag == 0x6000000f || entry.tag == 0x60000011 || entry.tag == 0x6fffe000)
        unread("packed relocations");
    }
  }

 private:
  struct TableRange {
    VirtAddr start;
    Size size;
  };

  void unread(std::string what) {
    if (out_.unread.empty()) out_.unread = std::move(what);
  }

  void add(std::uint64_t target, std::uint64_t source, CodeUseKind kind, std::uint64_t size = 0) {
    if (ranges_.contains(VirtAddr{target}))
      out_.found.push_back({VirtAddr{target}, VirtAddr{source}, Size{size}, kind});
  }
  void add_patched(std::uint64_t target, VirtAddr source) {
    add(target, source.value, CodeUseKind::patched);
  }

  [[nodiscard]] bool in_table(VirtAddr address) const {
    return std::ranges::any_of(tables_, [&](const TableRange& table) {
      return in_range(address.value, table.start.value, table.size.value);
    });
  }

  [[nodiscard]] std::optional<std::uint64_t> word_at(VirtAddr address) const {
    const ByteView bytes = file_.bytes_at(address, Size{8});
    if (bytes.size() < 8) return std::nullopt;
    return load_uint(bytes, 0, 8, file_.header().order);
  }

  // A ModRM byte with mod 0 and rm 5, its displacement, and an immediate of 0, 1, 2 or 4 bytes
  // from whose end the displacement counts (Intel SDM volume 2, 2.2.1.6).
  void operands_in(ByteView bytes, std::uint64_t address) {
    constexpr std::array<std::uint64_t, 4> kImmediates{0, 1, 2, 4};
    for (std::size_t i = 0; i + 5 <= bytes.size(); ++i) {
      if ((std::to_integer<unsigned>(bytes[i]) & 0xc7) != 0x05) continue;
      const std::uint64_t end =
          address + i + 5 + sign_extended(load_uint(bytes, i + 1, 4, std::endian::little));
      for (const std::uint64_t immediate : kImmediates)
        add(end + immediate, address + i, CodeUseKind::operand);
    }
  }

  void distances_in(ByteView bytes, std::uint64_t address, CodeUseKind kind) {
    for (std::size_t i = (4 - address % 4) % 4; i + 4 <= bytes.size(); i += 4) {
      const std::uint64_t word = load_uint(bytes, i, 4, file_.header().order);
      if (word != 0) add(address + i + sign_extended(word), address + i, kind);
    }
  }

  void words_in(ByteView bytes, std::uint64_t address) {
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8)
      add_patched(load_uint(bytes, i, 8, file_.header().order), VirtAddr{address + i});
  }

  const ElfFile& file_;
  const AddressRanges& ranges_;
  CodeUses& out_;
  std::vector<TableRange> tables_;  // of patched code
};

}  // namespace

std::span<const CodeUse> CodeUses::into(VirtAddr first, VirtAddr end) const {
  const auto low = std::ranges::lower_bound(found, first, {}, &CodeUse::target);
  const auto high = std::ranges::lower_bound(low, found.end(), end, {}, &CodeUse::target);
  return {low, high};
}

CodeUses find_code_uses(const ElfFile& file, const AddressRanges& ranges) {
  CodeUses uses;
  if (ranges.empty()) return uses;
  UseScan scan(file, ranges, uses);
  scan.operands();
  scan.data_sections();
  scan.relocations();
  std::ranges::sort(uses.found, {}, [](const CodeUse& use) {
    return std::tuple(use.target, use.source, use.kind);
  });
  return uses;
}

}  // namespace reprobe
