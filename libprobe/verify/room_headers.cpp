#include "libprobe/verify/room_headers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// Of a file made to be slow; no other has that many.
constexpr std::size_t kMostRoomHeaders = 1024;

bool same_place(const Segment& a, const Segment& b) {
  return a.offset == b.offset && a.vaddr == b.vaddr && a.paddr == b.paddr && a.filesz == b.filesz &&
         a.memsz == b.memsz;
}

bool same_header(const Segment& a, const Segment& b) {
  return a.type == b.type && a.flags == b.flags && a.align == b.align && same_place(a, b);
}

bool ends_at(const Segment& segment, const IndexPlace& index) {
  return segment.offset.value + segment.filesz.value == index.offset.value + index.size.value &&
         segment.filesz == segment.memsz;
}

bool is_mapped_at_its_address(const ElfFile& file, const Segment& segment) {
  const auto offset = file.offset_of(segment.vaddr);
  return offset && *offset == segment.offset;
}

bool too_many(const ElfFile& before, const ElfFile& after) {
  return before.segments().size() > kMostRoomHeaders || after.segments().size() > kMostRoomHeaders;
}

class HeaderComparer {
 public:
  HeaderComparer(const ElfFile& before, const ElfFile& after,
                 const std::optional<IndexPlace>& index, std::vector<Finding>& out)
      : before_(before), after_(after), index_(index), out_(out) {}

  void run() {
    if (too_many(before_, after_)) {
      return report("more program headers than can be compared");
    }
    std::vector<bool> taken(after_.segments().size());
    for (const Segment& old : before_.segments()) {
      if (!find_again(old, taken)) {
        report(fmt::format("program header {} at {:#x} means something else", old.index,
                           old.vaddr.value));
      }
    }
    for (const Segment& now : after_.segments()) {
      if (!taken[now.index] && !is_new_note(now) && !is_new_load(now)) {
        report(fmt::format("program header {} at {:#x} is new", now.index, now.vaddr.value));
      }
    }
    compare_loads();
    if (const Segment* table = header_of(after_, PT_PHDR); table == nullptr) check_table();
  }

 private:
  void report(std::string message) {
    out_.push_back(verify_finding("verify-segment", std::move(message)));
  }

  [[nodiscard]] bool is_new_note(const Segment& now) const {
    return index_ && now.type == PT_NOTE && now.index == index_->segment &&
           now.offset == index_->offset && now.vaddr == index_->address &&
           now.paddr == index_->address && now.filesz == index_->size && now.memsz == now.filesz &&
           now.flags == PF_R && now.align == Size{4} &&
           is_last(now, PT_NOTE) &&
           (is_behind(now, PT_NOTE) || now.index + 1 == after_.segments().size());
  }

  [[nodiscard]] bool is_last(const Segment& now, std::uint32_t type) const {
    const auto behind = after_.segments().subspan(now.index + 1);
    return std::ranges::find(behind, type, &Segment::type) == behind.end();
  }

  [[nodiscard]] bool is_behind(const Segment& now, std::uint32_t type) const {
    return now.index != 0 && after_.segments()[now.index - 1].type == type;
  }

  // Of the segments that the input has: no page of them is shared with a new one.
  [[nodiscard]] Size page() const {
    Size largest{0x1000};
    for (const Segment& old : before_.segments()) {
      if (old.type == PT_LOAD) largest = std::max(largest, old.align);
    }
    return largest;
  }

  // Behind the old file and the other PT_LOADs; the code of stubs is to be run.
  bool is_new_load(const Segment& now) {
    return now.type == PT_LOAD && now.flags == (index_ ? PF_R : PF_R | PF_X) &&
           now.offset.value >= before_.source().size() && now.filesz == now.memsz &&
           now.align == page() && (!index_ || ends_at(now, *index_)) && now.paddr == now.vaddr &&
           is_behind(now, PT_LOAD) && ++new_loads_ == 1;
  }

  [[nodiscard]] bool same_text(FileOffset old, FileOffset now, Size size) const {
    const auto a = before_.source().slice(old, size, "bytes");
    const auto b = after_.source().slice(now, size, "bytes");
    return a && b && std::ranges::equal(*a, *b);
  }

  bool find_again(const Segment& old, std::vector<bool>& taken) {
    for (const Segment& now : after_.segments()) {
      if (taken[now.index] || now.type != old.type || !is_same(old, now)) continue;
      // They keep their order: what is mapped later lies over what is mapped before.
      if (last_found_ && now.index < *last_found_) continue;
      last_found_ = now.index;
      taken[now.index] = true;
      return true;
    }
    // What a file can do without, so that its entry is free (layout_headers.hpp).
    if (old.type == PT_PHDR) return !has(before_, PT_INTERP) && !has(after_, PT_PHDR);
    return old.type == PT_NOTE && is_part_of_another(old);
  }

  static const Segment* header_of(const ElfFile& file, std::uint32_t type) {
    const auto found = std::ranges::find(file.segments(), type, &Segment::type);
    return found == file.segments().end() ? nullptr : &*found;
  }
  static bool has(const ElfFile& file, std::uint32_t type) {
    return header_of(file, type) != nullptr;
  }

  bool is_same(const Segment& old, const Segment& now) const {
    if (old.flags != now.flags) return false;
    if (same_header(old, now))
      return old.type != PT_PHDR || same_table() || is_over_headers(old, now);
    switch (old.type) {
      case PT_LOAD:
        return has_grown(old, now);
      case PT_PHDR:
        return is_over_headers(old, now);
      case PT_NOTE:
      case PT_INTERP:
      case PT_GNU_PROPERTY:
        return has_moved(old, now) || has_index_behind(old, now) || has_taken_over(old, now);
      case PT_GNU_EH_FRAME:
        return !index_ && now.align == old.align && now.filesz == now.memsz &&
               now.paddr == now.vaddr && is_mapped_at_its_address(after_, now);
      default:
        return false;
    }
  }

  // Over padding, up to the end of the index. What it was is checked by grown_ranges().
  bool has_grown(const Segment& old, const Segment& now) const {
    return old.offset == now.offset && old.vaddr == now.vaddr && old.paddr == now.paddr &&
           old.align == now.align && old.filesz == old.memsz && now.filesz > old.filesz &&
           now.filesz == now.memsz && (now.flags & PF_W) == 0 &&
           (!index_ ||
            (ends_at(now, *index_) && index_->offset.value >= old.offset.value + old.filesz.value));
  }

  [[nodiscard]] bool same_table() const {
    return before_.header().phoff == after_.header().phoff &&
           before_.header().phnum == after_.header().phnum;
  }

  // The table, where that is now; or where it was said to be, if it has not moved.
  bool is_over_headers(const Segment& old, const Segment& now) const {
    const ElfHeader& header = after_.header();
    const bool there =
        header.phoff == before_.header().phoff
            ? now.offset == old.offset && now.vaddr == old.vaddr && now.paddr == old.paddr
            : now.offset == header.phoff && now.paddr == now.vaddr &&
                  is_mapped_at_its_address(after_, now);
    return there && now.align == old.align && now.filesz == now.memsz &&
           now.filesz.value == header.phnum * header.phentsize;
  }

  // It made place for program headers, and its bytes went along.
  bool has_moved(const Segment& old, const Segment& now) const {
    return old.align == now.align && old.filesz == now.filesz && old.memsz == now.memsz &&
           now.paddr == now.vaddr && now.offset.value >= before_.source().size() &&
           same_text(old.offset, now.offset, old.filesz) && is_mapped_at_its_address(after_, now);
  }

  // The same, and the index continues its notes.
  bool has_index_behind(const Segment& old, const Segment& now) const {
    return index_ && old.type == PT_NOTE && now.index == index_->segment &&
           old.align == now.align && old.align != Size{8} && old.filesz == old.memsz &&
           now.filesz == now.memsz && now.filesz.value == old.filesz.value + index_->size.value &&
           ends_at(now, *index_) && now.paddr == now.vaddr &&
           now.offset.value >= before_.source().size() &&
           same_text(old.offset, now.offset, old.filesz) && is_mapped_at_its_address(after_, now);
  }

  // Another PT_NOTE that touches has given up its header.
  bool has_taken_over(const Segment& old, const Segment& now) const {
    return old.type == PT_NOTE && holds(now, old) && now.align == Size{4} &&
           now.filesz == now.memsz && is_joined(now);
  }
  bool is_part_of_another(const Segment& old) const {
    return std::ranges::any_of(after_.segments(), [&](const Segment& now) {
      return now.type == PT_NOTE && holds(now, old) && is_joined(now);
    });
  }
  static bool holds(const Segment& now, const Segment& old) {
    return old.offset >= now.offset &&
           old.vaddr.value - now.vaddr.value == old.offset.value - now.offset.value &&
           old.offset.value - now.offset.value <= now.filesz.value &&
           old.filesz.value <= now.filesz.value - (old.offset.value - now.offset.value);
  }
  // Of PT_NOTEs of the input, without bytes between them.
  bool is_joined(const Segment& now) const {
    std::uint64_t covered = 0;
    bool begins = false;
    for (const Segment& old : before_.segments()) {
      if (old.type != PT_NOTE || !holds(now, old)) continue;
      covered += old.filesz.value;
      begins = begins || (old.offset == now.offset && old.paddr == now.paddr);
    }
    return begins && covered == now.filesz.value;
  }

  // They ascend and lie apart, and the index is in one that nobody writes.
  void compare_loads() {
    std::uint64_t end = 0;
    bool read_only = false;
    for (const Segment& load : after_.segments()) {
      if (load.type != PT_LOAD) continue;
      if (load.vaddr.value < end) {
        report(fmt::format("program header {} at {:#x} overlaps another", load.index,
                           load.vaddr.value));
      }
      end = load.vaddr.value + load.memsz.value;
      read_only =
          read_only || (index_ && (load.flags & PF_W) == 0 &&
                        in_range(index_->offset.value, load.offset.value, load.filesz.value));
    }
    if (index_ && !read_only) report("the index is not in memory that is read-only");
    if (after_.header().phnum > before_.header().phnum + (index_ ? 2 : 1)) {
      report("more program headers are new than are needed");
    }
  }

  // Without PT_PHDR the kernel and the dynamic linker find a program's table by e_phoff: a table
  // that is loaded stays loaded.
  void check_table() {
    const auto is_loaded = [](const ElfFile& file) {
      const ElfHeader& header = file.header();
      const std::uint64_t size = header.phnum * header.phentsize;
      return std::ranges::any_of(file.segments(), [&](const Segment& s) {
        return s.type == PT_LOAD && header.phoff >= s.offset && size <= s.filesz.value &&
               header.phoff.value - s.offset.value <= s.filesz.value - size;
      });
    };
    if (is_loaded(before_) && !is_loaded(after_)) report("the program headers are not loaded");
  }

  const ElfFile& before_;
  const ElfFile& after_;
  const std::optional<IndexPlace>& index_;
  std::vector<Finding>& out_;
  std::size_t new_loads_{};
  std::optional<std::uint32_t> last_found_;  // in the result, of the old ones
};

bool is_padding(std::byte byte) { return byte == std::byte{0} || byte == std::byte{'X'}; }

// What headers alone find, and the comparison of headers follows where it moves.
bool may_move(const Segment& segment) {
  return segment.type == PT_INTERP || segment.type == PT_NOTE || segment.type == PT_GNU_PROPERTY;
}

}  // namespace

void compare_room_headers(const ElfFile& before, const ElfFile& after,
                          const std::optional<IndexPlace>& index, std::vector<Finding>& out) {
  HeaderComparer(before, after, index, out).run();
}

std::optional<Range> table_in_place(const ElfFile& before, const ElfFile& after,
                                    std::vector<Finding>& out) {
  const ElfHeader& old = before.header();
  const ElfHeader& now = after.header();
  if (old.phoff != now.phoff || old.phentsize != now.phentsize) return std::nullopt;
  if (too_many(before, after)) return std::nullopt;
  const Range table{old.phoff.value, now.phoff.value + now.phnum * now.phentsize};
  const std::uint64_t begin = old.phoff.value + old.phnum * old.phentsize;
  if (table.end <= begin) return Range{table.begin, begin};
  const auto bytes = before.source().slice(FileOffset{begin}, Size{table.end - begin}, "bytes");
  // compare_room_headers() refuses a table that has grown by more.
  if (!bytes || now.phnum > old.phnum + 2) {
    out.push_back(verify_finding("verify-segment", "the program headers reach too far"));
    return Range{table.begin, begin};
  }
  for (std::uint64_t at = begin; at < table.end; ++at) {
    const auto holds = [&](const Segment& s) {
      return may_move(s) && in_range(at, s.offset.value, s.filesz.value);
    };
    if (is_padding((*bytes)[static_cast<std::size_t>(at - begin)]) ||
        std::ranges::any_of(before.segments(), holds)) {
      continue;
    }
    out.push_back(verify_finding(
        "verify-segment",
        fmt::format("the program headers lie over the byte at {:#x}, which was not padding", at)));
    return Range{table.begin, begin};
  }
  return table;
}

std::vector<Range> grown_ranges(const ElfFile& before, const ElfFile& after,
                                std::vector<Finding>& out) {
  std::vector<Range> ranges;
  if (too_many(before, after)) return ranges;
  for (const Segment& old : before.segments()) {
    if (old.type != PT_LOAD) continue;
    const auto grown = std::ranges::find_if(after.segments(), [&](const Segment& now) {
      return now.type == PT_LOAD && now.vaddr == old.vaddr && now.offset == old.offset &&
             now.filesz > old.filesz;
    });
    if (grown == after.segments().end()) continue;
    const Range range{old.offset.value + old.filesz.value,
                      std::min(grown->offset.value + grown->filesz.value, before.source().size())};
    if (range.begin >= range.end) continue;
    const auto bytes =
        before.source().slice(FileOffset{range.begin}, Size{range.end - range.begin}, "padding");
    const auto over = [&](FileOffset offset, Size size) {
      return size.value != 0 && offset.value < range.end &&
             (offset.value >= range.begin || size.value > range.begin - offset.value);
    };
    const bool claimed =
        std::ranges::any_of(before.segments(),
                            [&](const Segment& s) { return over(s.offset, s.filesz); }) ||
        std::ranges::any_of(before.sections(), [&](const Section& s) {
          return !s.nobits() && s.type != SHT_NULL && over(s.offset, s.size);
        });
    const bool zeros =
        bytes && std::ranges::all_of(*bytes, [](std::byte b) { return b == std::byte{0}; });
    if (claimed || !zeros) {
      out.push_back(verify_finding(
          "verify-bytes",
          fmt::format("the segment at {:#x} has grown over bytes that are not padding",
                      old.vaddr.value)));
      continue;
    }
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace reprobe
