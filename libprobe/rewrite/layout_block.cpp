#include "libprobe/rewrite/layout_block.hpp"

#include <algorithm>
#include <vector>

#include "libprobe/notes/walk.hpp"
#include "libprobe/rewrite/layout_headers.hpp"

namespace reprobe {
namespace {

// Notes and the interpreter's name are short; what is longer is not looked at.
constexpr std::uint64_t kMostBytes = 0x1000;
// Of a file made to be slow: headers that overlap in a long chain, many symbol tables.
constexpr int kMostSteps = 16, kMostSymbolTables = 4;

// Whole notes of GNU; the padding of the last may be cut off.
bool are_gnu_notes(ByteView bytes, Size align, std::endian order) {
  const NoteLayout layout{.align = align.value == 8 ? 8U : 4U, .order = order, .gaps = false};
  std::uint64_t at = 0;
  while (at < bytes.size()) {
    const auto note = read_note(bytes, at, layout);
    if (!note || note->next <= at || note->namesz != 4) return false;
    constexpr std::string_view kGnu("GNU\0", 4);
    if (as_text(bytes.subspan(static_cast<std::size_t>(note->name), 4)) != kGnu) return false;
    at = note->next;
  }
  return true;
}

bool is_gnu_notes(const ElfFile& file, const Section& section) {
  const auto bytes = file.contents(section);
  return bytes && are_gnu_notes(*bytes, section.addralign, file.header().order);
}

class BlockFinder {
 public:
  BlockFinder(const ElfFile& file, const Segment& load, std::size_t more)
      : file_(file),
        load_(load),
        begin_(file.header().phoff.value + headers_size(file, file.segments().size()).value),
        end_(file.header().phoff.value + headers_size(file, file.segments().size() + more).value) {
    const auto interp = std::ranges::find(file.segments(), PT_INTERP, &Segment::type);
    if (interp != file.segments().end()) interp_ = &*interp;
  }

  std::optional<MovableBlock> find() {
    // What a header covers moves as a whole, and may reach into the next thing.
    std::uint64_t before = 0;
    for (int step = 0; before != end_; ++step) {
      before = end_;
      if (step == kMostSteps || !take_all() || end_ > load_.offset.value + load_.filesz.value ||
          end_ - begin_ > kMostBytes)
        return std::nullopt;
    }
    if (!rest_is_padding() || has_symbol()) return std::nullopt;
    if (items_.empty()) return MovableBlock{};
    const std::uint64_t first = std::ranges::min(items_, {}, &Range::begin).begin;
    return MovableBlock{{first}, address_of(first), Size{end_of_items() - first}};
  }

 private:
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
  };

  [[nodiscard]] VirtAddr address_of(std::uint64_t offset) const {
    return {offset - load_.offset.value + load_.vaddr.value};
  }

  [[nodiscard]] bool is_over(std::uint64_t begin, std::uint64_t size) const {
    const auto end = checked_add(begin, size);
    return size != 0 && begin < end_ && (!end || *end > begin_);
  }

  // Takes what lies over the bytes; false where it cannot be moved.
  bool take_all() {
    items_.clear();
    const ElfHeader& header = file_.header();
    if (is_over(header.shoff.value, file_.sections().size() * header.shentsize)) return false;
    for (const Segment& s : file_.segments()) {
      if (s.index == load_.index || !is_over(s.offset.value, s.filesz.value)) continue;
      const bool known = s.type == PT_INTERP || s.type == PT_NOTE || s.type == PT_GNU_PROPERTY;
      if (!known || s.filesz != s.memsz || !take(s.offset, s.vaddr, s.filesz)) return false;
    }
    for (const Section& s : file_.sections()) {
      if (s.nobits() || s.type == SHT_NULL || !is_over(s.offset.value, s.size.value)) continue;
      const bool known = s.flags == SHF_ALLOC && s.size.value <= kMostBytes &&
                         ((s.type == SHT_PROGBITS && is_interp(s)) ||
                          (s.type == SHT_NOTE && is_gnu_notes(file_, s)));
      if (!known || !take(s.offset, s.addr, s.size)) return false;
    }
    return true;
  }

  [[nodiscard]] bool is_interp(const Section& section) const {
    return interp_ != nullptr && interp_->offset == section.offset &&
           interp_->filesz == section.size;
  }

  bool take(FileOffset offset, VirtAddr address, Size size) {
    if (offset.value < begin_ || address != address_of(offset.value) || size.value > kMostBytes)
      return false;
    items_.push_back({offset.value, offset.value + size.value});
    end_ = std::max(end_, offset.value + size.value);
    return true;
  }

  [[nodiscard]] std::uint64_t end_of_items() const {
    return std::ranges::max(items_, {}, &Range::end).end;
  }

  [[nodiscard]] bool rest_is_padding() const {
    const auto bytes = file_.source().slice(FileOffset{begin_}, Size{end_ - begin_}, "headers");
    if (!bytes) return false;
    std::vector<bool> taken(bytes->size());
    for (const Range& item : items_) {
      std::fill(taken.begin() + static_cast<std::ptrdiff_t>(item.begin - begin_),
                taken.begin() + static_cast<std::ptrdiff_t>(item.end - begin_), true);
    }
    for (std::size_t i = 0; i < bytes->size(); ++i) {
      const std::byte b = (*bytes)[i];
      if (!taken[i] && b != std::byte{0} && b != std::byte{'X'}) return false;
    }
    return true;
  }

  // glibc's crt1.o names the ABI tag for itself; the Arm ABI's mapping symbols name nothing.
  static bool is_harmless(std::string_view name) {
    return name == "__abi_tag" || name.starts_with('$');
  }

  // A linker script can name a note; then code may use its address.
  [[nodiscard]] bool has_symbol() const {
    const VirtAddr begin = address_of(begin_);
    int tables = 0;
    for (const Section& section : file_.sections()) {
      if (!section.holds_symbols()) continue;
      const auto table = file_.symbol_table(section);
      if (!table || ++tables > kMostSymbolTables) return true;
      for (std::uint32_t i = 0; i < table->size(); ++i) {
        const Symbol symbol = table->at(i);
        // Of a section that is not loaded the value is no address.
        const Section* in = symbol.in_section() ? file_.section_at(symbol.shndx) : nullptr;
        if (in != nullptr && in->allocated() && symbol.type != STT_SECTION &&
            symbol.type != STT_TLS && in_range(symbol.value.value, begin.value, end_ - begin_) &&
            !is_harmless(table->name(symbol)))
          return true;
      }
    }
    return false;
  }

  const ElfFile& file_;
  const Segment& load_;
  const Segment* interp_{};
  std::uint64_t begin_;  // where the table ends
  std::uint64_t end_;    // where it would end with the new entries, or what has to move ends
  std::vector<Range> items_;
};

}  // namespace

std::optional<MovableBlock> block_behind_headers(const ElfFile& file, std::size_t more) {
  const std::uint64_t table = file.header().phoff.value;
  const std::uint64_t size = headers_size(file, file.segments().size()).value;
  for (const Segment& load : file.segments()) {
    if (load.type != PT_LOAD || !in_range(table, load.offset.value, load.filesz.value)) continue;
    if (load.filesz.value - (table - load.offset.value) < size) return std::nullopt;
    return BlockFinder(file, load, more).find();
  }
  return std::nullopt;
}

std::optional<std::size_t> notes_at_end(const ElfFile& file, const MovableBlock& block) {
  const std::uint64_t end = block.offset.value + block.size.value;
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_NOTE || segment.align.value == 8 || segment.filesz != segment.memsz ||
        !block.holds(segment.offset, segment.filesz) ||
        segment.offset.value + segment.filesz.value != end || segment.filesz.value % 4 != 0 ||
        segment.offset.value % 4 != 0)
      continue;
    const auto bytes = file.source().slice(segment.offset, segment.filesz, "notes");
    if (bytes && are_gnu_notes(*bytes, segment.align, file.header().order)) return segment.index;
  }
  return std::nullopt;
}

bool headers_grow_in_place(const ElfFile& file) {
  if (spare_header(file)) return true;
  const auto block = block_behind_headers(file, 1);
  return block && block->size.value == 0;
}

}  // namespace reprobe
