#include "libprobe/code/flow_scan.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "libprobe/elf/dynamic_tables.hpp"

namespace reprobe {
namespace {

// Relocations of the x86-64 psABI, table 4.9, whose value is no address: they are stepped over so
// that a TLS offset does not count as one.
constexpr bool is_tls(std::uint32_t type) { return type >= 16 && type <= 23; }

// Segments of a sane file do not overlap; all together are read as if they were a few times the
// file.
constexpr std::uint64_t kMaxScanPasses = 4;

bool is_printable(std::byte b) {
  const unsigned value = std::to_integer<unsigned>(b);
  return (value >= 0x20 && value < 0x7f) || value == '\n' || value == '\t';
}

// The end of a text, not an address: four bytes of text before it, three and a NUL in it. Below
// 16 MiB an address has a NUL there too; one among text that fills the field before it is believed
// where it has the eight bytes of a pointer.
bool is_text(ByteView bytes, std::size_t at) {
  constexpr std::size_t kBefore = 4, kWord = 4;
  if (at < kBefore || std::to_integer<unsigned>(bytes[at + kWord - 1]) != 0) return false;
  const ByteView text = bytes.subspan(at - kBefore, kBefore + kWord - 1);
  return std::ranges::all_of(text, is_printable);
}

bool is_pointer(ByteView bytes, std::size_t at, std::uint64_t address) {
  if ((address + at) % 8 != 0 || at + 8 > bytes.size()) return false;
  return std::ranges::all_of(bytes.subspan(at + 4, 4),
                             [](std::byte b) { return b == std::byte{0}; });
}

// Tables of the linker with a format of their own: the addresses in symbols and relocations are
// read as such, and what else looks like one is none.
bool is_linkers_table(const Section& section) {
  // SHT_GNU_HASH and the three tables of symbol versions have numbers of their own.
  constexpr std::array<std::uint32_t, 11> kTypes{SHT_SYMTAB, SHT_STRTAB, SHT_RELA,  SHT_HASH,
                                                 SHT_REL,    SHT_DYNSYM, SHT_RELR,  0x6ffffff6,
                                                 0x6ffffffd, 0x6ffffffe, 0x6fffffff};
  return std::ranges::find(kTypes, section.type) != kTypes.end();
}

std::uint32_t load32(const std::byte* at) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(at[i]) << (8 * i);
  return value;
}

class Scan {
 public:
  Scan(const ElfFile& file, const AddressRanges& ranges, References& out)
      : file_(file), ranges_(ranges), out_(out) {}

  void segments() {
    std::uint64_t budget = file_.source().size() * kMaxScanPasses;
    for (const Segment& segment : file_.segments()) {
      if (segment.type != PT_LOAD || segment.filesz.value == 0) continue;
      const bool executable = (segment.flags & PF_X) != 0;
      if (!executable && file_.header().type != ET_EXEC) continue;
      const auto bytes = file_.source().slice(segment.offset, segment.filesz, "a segment");
      if (!bytes || segment.filesz.value > budget) {
        unread("the bytes of a segment");
        return;
      }
      budget -= segment.filesz.value;
      if (executable) code(*bytes, segment.vaddr.value);
      if (file_.header().type == ET_EXEC) words(*bytes, segment.vaddr.value, executable);
    }
  }

  void relocations() {
    std::uint64_t budget = file_.source().size();
    for (const Section& section : file_.sections()) {
      // Bionic's (SHT_ANDROID_REL, _RELA, _RELR) are packed in a way of their own.
      constexpr std::array<std::uint32_t, 3> kPacked{0x60000001, 0x60000002, 0x6fffff00};
      const bool packed = std::ranges::find(kPacked, section.type) != kPacked.end();
      if (packed && section.allocated()) unread("the packed relocations of " + section.name);
      const bool table = section.holds_relocations() || section.type == SHT_RELR;
      if (!table || !section.allocated()) continue;
      if (section.size.value > budget) return unread("relocations");
      budget -= section.size.value;
      const bool good = section.type == SHT_RELR ? relr(section) : relocation_table(section);
      if (!good) unread("the relocations of " + section.name);
    }
  }

  // What the dynamic section names without a section: the tables of a file whose section headers
  // do not say so.
  void dynamic_relocations() {
    for (const DynamicTable& table : dynamic_tables(file_)) {
      if (!table.whole) unread("the relocations that the dynamic section names");
      const auto offset = file_.offset_of(table.address);
      const bool known = std::ranges::any_of(file_.sections(), [&](const Section& section) {
        const bool holds = section.holds_relocations() || section.type == SHT_RELR;
        return holds && section.allocated() && section.offset == offset &&
               section.addr == table.address && section.size.value >= table.bytes.size();
      });
      if (known) continue;
      for_each_relocation(file_, table, [&](const DynamicRelocation& r) {
        // Of a symbol the value is found among the symbols.
        const auto in_place = word_at(r.place);
        if (r.addend)
          add(static_cast<std::uint64_t>(*r.addend), r.place.value, ReferenceKind::relocation);
        if (!r.addend && in_place) add(*in_place, r.place.value, ReferenceKind::relocation);
      });
    }
  }

  // Where the program begins, and what the dynamic linker calls. Its arrays of functions are words
  // of data.
  void entries() {
    constexpr std::uint64_t DT_INIT = 12, DT_FINI = 13;
    add(file_.header().entry.value, 0, ReferenceKind::symbol);
    for (const DynamicEntry& entry : dynamic_entries(file_)) {
      if (entry.tag == DT_INIT || entry.tag == DT_FINI) add(entry.value, 0, ReferenceKind::symbol);
    }
  }

  void symbols() {
    std::uint64_t budget = file_.source().size();
    for (const Section& section : file_.sections()) {
      if (!section.holds_symbols()) continue;
      if (section.nobits()) continue;
      const auto table = file_.symbol_table(section);
      if (!table || section.size.value > budget) {
        unread("symbols");
        continue;
      }
      budget -= section.size.value;
      for (std::uint32_t i = 1; i < table->size(); ++i) {
        const Symbol symbol = table->at(i);
        if (symbol.type != STT_TLS && symbol.type != STT_FILE)
          add(symbol.value.value, 0, ReferenceKind::symbol);
      }
    }
  }

 private:
  void unread(std::string what) {
    if (out_.unread.empty()) out_.unread = std::move(what);
  }

  void add(std::uint64_t target, std::uint64_t source, ReferenceKind kind) {
    if (ranges_.contains(VirtAddr{target}))
      out_.found.push_back({VirtAddr{target}, VirtAddr{source}, kind});
  }

  // Every offset is looked at as if an instruction's opcode stood there. A displacement counts from
  // its own end, since none of these instructions has an immediate behind it.
  void code(ByteView bytes, std::uint64_t address) {
    if (bytes.size() < 5) return;
    const std::byte* const data = bytes.data();
    const std::size_t last = bytes.size() - 5;
    const auto relative = [&](std::size_t opcode, std::size_t field, ReferenceKind kind) {
      if (field + 4 > bytes.size()) return;
      const std::uint64_t displacement =
          (std::uint64_t{load32(data + field)} ^ 0x80000000U) - 0x80000000U;
      add(address + field + 4 + displacement, address + opcode, kind);
    };
    for (std::size_t i = 0; i <= last; ++i) {
      const unsigned second = std::to_integer<unsigned>(data[i + 1]);
      switch (std::to_integer<unsigned>(data[i])) {
        case 0xe8:
          relative(i, i + 1, ReferenceKind::call);
          break;
        case 0xe9:
          relative(i, i + 1, ReferenceKind::branch);
          break;
        case 0x0f:
          if ((second & 0xf0) == 0x80) relative(i, i + 2, ReferenceKind::branch);
          break;
        case 0xc7:
          if (second == 0xf8) relative(i, i + 2, ReferenceKind::branch);
          break;
        case 0x8d:  // mod 0, rm 5: rip-relative
          if ((second & 0xc7) == 0x05) relative(i, i + 2, ReferenceKind::lea);
          break;
        default:
          break;
      }
    }
  }

  // Addresses of a program that is not position-independent lie below 4 GiB, unless it was linked
  // elsewhere: then the upper half has to be there too.
  void words(ByteView bytes, std::uint64_t address, bool executable) {
    if (bytes.size() < 4) return;
    const std::uint64_t upper = file_.header().entry.value >> 32;
    const std::size_t width = upper == 0 ? 4 : 8;
    if (bytes.size() < width) return;
    for (std::size_t i = 0; i + width <= bytes.size(); ++i) {
      std::uint64_t value = load32(bytes.data() + i);
      if (width == 8) value |= std::uint64_t{load32(bytes.data() + i + 4)} << 32;
      if (!ranges_.contains(VirtAddr{value})) continue;
      const bool text = !executable && width == 4 && is_text(bytes, i);
      if (text && !is_pointer(bytes, i, address)) continue;
      const Section* section =
          executable ? nullptr : file_.section_containing(VirtAddr{address + i});
      if (section != nullptr && is_linkers_table(*section)) continue;
      add(value, address + i, ReferenceKind::word);
    }
  }

  bool relocation_table(const Section& section) {
    const auto relocations = file_.relocations(section);
    if (!relocations) return false;
    const Section* linked = file_.section_at(section.link);
    std::optional<SymbolTable> symbols;
    if (linked != nullptr && linked->holds_symbols()) {
      auto table = file_.symbol_table(*linked);
      if (!table) return false;
      symbols = std::move(*table);
    }
    for (const Relocation& r : *relocations) {
      if (is_tls(r.type)) continue;
      std::uint64_t value = 0;
      if (r.symbol != 0 && symbols) value = symbols->at(r.symbol).value.value;
      if (r.addend) {
        value += static_cast<std::uint64_t>(*r.addend);
      } else if (const auto in_place = word_at(r.offset)) {
        value += *in_place;
      }
      add(value, r.offset.value, ReferenceKind::relocation);
    }
    return true;
  }

  [[nodiscard]] std::optional<std::uint64_t> word_at(VirtAddr address) const {
    const unsigned width = file_.header().word();
    const ByteView bytes = file_.bytes_at(address, Size{width});
    if (bytes.size() < width) return std::nullopt;
    return load_uint(bytes, 0, width, file_.header().order);
  }

  // SHT_RELR (gABI, "Relative Relocation Table"): an even entry is the address of a word, an odd
  // one a bitmap of the words behind it.
  bool relr(const Section& section) {
    const auto bytes = file_.contents(section);
    if (!bytes) return false;
    const unsigned width = file_.header().word();
    std::uint64_t where = 0;
    const auto relative = [&](std::uint64_t at) {
      if (const auto value = word_at(VirtAddr{at})) add(*value, at, ReferenceKind::relocation);
    };
    for (std::size_t i = 0; i + width <= bytes->size(); i += width) {
      std::uint64_t entry = load_uint(*bytes, i, width, file_.header().order);
      if ((entry & 1) == 0) {
        relative(entry);
        where = entry + width;
        continue;
      }
      for (unsigned bit = 0; (entry >>= 1) != 0; ++bit)
        if ((entry & 1) != 0) relative(where + std::uint64_t{bit} * width);
      where += std::uint64_t{8 * width - 1} * width;
    }
    return true;
  }

  const ElfFile& file_;
  const AddressRanges& ranges_;
  References& out_;
};

}  // namespace

AddressRanges::AddressRanges(std::vector<Range> ranges) : filter_(kSlots) {
  std::ranges::sort(ranges, {}, &Range::start);
  for (const Range& range : ranges) {
    if (!ranges_.empty() && range.start <= ranges_.back().end) {
      ranges_.back().end = std::max(ranges_.back().end, range.end);
    } else {
      ranges_.push_back(range);
    }
  }
  for (const Range& range : ranges_) {
    const std::uint64_t first = range.start.value >> kBlockShift;
    const std::uint64_t blocks = ((range.end.value - range.start.value) >> kBlockShift) + 2;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(blocks, kSlots); ++i)
      filter_[static_cast<std::size_t>((first + i) % kSlots)] = true;
  }
}

bool AddressRanges::search(VirtAddr address) const {
  const auto after = std::ranges::upper_bound(ranges_, address, {}, &Range::start);
  return after != ranges_.begin() && address < std::prev(after)->end;
}

std::span<const Reference> References::into(VirtAddr first, VirtAddr end) const {
  const auto low = std::ranges::lower_bound(found, first, {}, &Reference::target);
  const auto high = std::ranges::lower_bound(low, found.end(), end, {}, &Reference::target);
  return {low, high};
}

References find_references(const ElfFile& file, const AddressRanges& ranges) {
  References references;
  Scan scan(file, ranges, references);
  scan.segments();
  scan.relocations();
  scan.dynamic_relocations();
  scan.entries();
  scan.symbols();
  const auto key = [](const Reference& r) { return std::tuple(r.target, r.source, r.kind); };
  std::ranges::sort(references.found, {}, key);
  const auto same = [&](const Reference& a, const Reference& b) { return key(a) == key(b); };
  references.found.erase(std::unique(references.found.begin(), references.found.end(), same),
                         references.found.end());
  return references;
}

}  // namespace reprobe
