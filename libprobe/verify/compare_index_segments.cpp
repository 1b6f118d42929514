#include "libprobe/verify/compare_index_segments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// Of a file made to be slow; no other has that many.
constexpr std::size_t kMostHeaders = 1024;

constexpr std::uint32_t kPermissions = PF_R | PF_W | PF_X;

bool same_place(const Segment& a, const Segment& b) {
  return a.offset == b.offset && a.vaddr == b.vaddr && a.paddr == b.paddr && a.filesz == b.filesz &&
         a.memsz == b.memsz;
}

bool same_program_header(const Segment& a, const Segment& b) {
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

class SegmentComparer {
 public:
  SegmentComparer(const ElfFile& before, const ElfFile& after, const IndexPlace& index,
                  std::vector<Finding>& out)
      : before_(before), after_(after), index_(index), out_(out) {}

  void run() {
    if (after_.segments().size() > kMostHeaders) {
      return report("more program headers than can be compared");
    }
    std::vector<bool> taken(after_.segments().size());
    for (const Segment& old : before_.segments()) {
      if (!find_again(old, taken)) {
        report(fmt::format("program header {} means something else", old.index));
      }
    }
    std::size_t loads = 0;
    for (const Segment& now : after_.segments()) {
      if (taken[now.index]) continue;
      const bool is_note = now.type == PT_NOTE && now.index == index_.segment &&
                           now.offset == index_.offset && now.vaddr == index_.address &&
                           now.paddr == index_.address && now.filesz == index_.size &&
                           now.memsz == now.filesz && now.flags == PF_R && now.align == Size{4};
      const bool is_load = now.type == PT_LOAD && (now.flags & kPermissions) == PF_R &&
                           now.offset.value >= before_.source().size() && ends_at(now, index_) &&
                           now.paddr == now.vaddr && ++loads == 1;
      if (!is_note && !is_load) {
        report(fmt::format("program header {} is new", now.index));
      }
    }
    compare_loads();
  }

 private:
  void report(std::string message) {
    out_.push_back(verify_finding("verify-segment", std::move(message)));
  }

  [[nodiscard]] bool same_text(FileOffset old, FileOffset now, Size size) const {
    const auto a = before_.source().slice(old, size, "bytes");
    const auto b = after_.source().slice(now, size, "bytes");
    return a && b && std::ranges::equal(*a, *b);
  }

  bool find_again(const Segment& old, std::vector<bool>& taken) {
    for (const Segment& now : after_.segments()) {
      if (taken[now.index] || now.type != old.type || !is_same(old, now)) continue;
      taken[now.index] = true;
      return true;
    }
    // What a file can do without, so that its entry is free (layout_headers.hpp).
    if (old.type == PT_PHDR) return !has(before_, PT_INTERP) && !has(after_, PT_PHDR);
    return old.type == PT_NOTE && is_part_of_another(old);
  }

  static bool has(const ElfFile& file, std::uint32_t type) {
    return std::ranges::find(file.segments(), type, &Segment::type) != file.segments().end();
  }

  bool is_same(const Segment& old, const Segment& now) const {
    if (same_program_header(old, now)) return true;
    if (old.flags != now.flags) return false;
    switch (old.type) {
      case PT_LOAD:
        return has_grown(old, now);
      case PT_PHDR:
        return is_over_headers(old, now);
      case PT_NOTE:
      case PT_INTERP:
      case PT_GNU_PROPERTY:
        return has_moved(old, now) || has_index_behind(old, now) || has_taken_over(old, now);
      default:
        return false;
    }
  }

  // Up to the end of the index, over padding.
  bool has_grown(const Segment& old, const Segment& now) const {
    return old.offset == now.offset && old.vaddr == now.vaddr && old.paddr == now.paddr &&
           old.align == now.align && old.filesz == old.memsz && now.filesz > old.filesz &&
           (now.flags & PF_W) == 0 && ends_at(now, index_) &&
           index_.offset.value >= old.offset.value + old.filesz.value;
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
    return old.type == PT_NOTE && now.index == index_.segment && old.align == now.align &&
           old.align != Size{8} && old.filesz == old.memsz && now.filesz == now.memsz &&
           now.filesz.value == old.filesz.value + index_.size.value && ends_at(now, index_) &&
           now.paddr == now.vaddr && now.offset.value >= before_.source().size() &&
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
        report(fmt::format("program header {} overlaps another", load.index));
      }
      end = load.vaddr.value + load.memsz.value;
      read_only =
          read_only || ((load.flags & PF_W) == 0 &&
                        in_range(index_.offset.value, load.offset.value, load.filesz.value));
    }
    if (!read_only) report("the index is not in memory that is read-only");
    if (after_.header().phnum > before_.header().phnum + 2) {
      report("more than two program headers are new");
    }
  }

  const ElfFile& before_;
  const ElfFile& after_;
  const IndexPlace& index_;
  std::vector<Finding>& out_;
};

}  // namespace

void compare_index_segments(const ElfFile& before, const ElfFile& after, const IndexPlace& index,
                            std::vector<Finding>& out) {
  SegmentComparer(before, after, index, out).run();
}

}  // namespace reprobe
