#include "libprobe/verify/moved_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "libprobe/elf/file_ranges.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/verify/leftovers.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

constexpr std::uint64_t kFilePage = 0x1000;
// The comparison asks every header about each; no file has more segments of data.
constexpr std::size_t kMostMovedSegments = 16;

bool is_data_load(const Segment& segment) {
  return segment.type == PT_LOAD && (segment.flags & PF_W) != 0 && segment.filesz.value != 0;
}

bool share_a_page(const Segment& a, const Segment& b, std::uint64_t page) {
  const auto last = [](const Segment& s) { return s.offset.value + (s.filesz.value - 1); };
  return a.offset.value / page <= last(b) / page && b.offset.value / page <= last(a) / page;
}

// Elf32_Phdr, Elf64_Phdr; Elf32_Shdr, Elf64_Shdr.
std::uint64_t offset_field(const ElfHeader& header, const Segment& segment) {
  return segment.header_offset.value + (header.is64 ? 8 : 4);
}
std::uint64_t offset_field(const ElfHeader& header, const Section& section) {
  return section.header_offset.value + (header.is64 ? 24 : 16);
}

class DataReturn {
 public:
  DataReturn(const ElfFile& before, const ElfFile& after) : before_(before), after_(after) {
    moved_.plan = std::make_unique<Plan>();
  }

  std::optional<MovedData> run() {
    const auto old = before_.segments();
    const auto now = after_.segments();
    if (old.size() != now.size() || before_.header().phoff != after_.header().phoff) return {};
    std::size_t count = 0;
    for (std::size_t i = 0; i < old.size(); ++i) {
      if (!has_moved_behind(old[i], now[i]) || ++count > kMostMovedSegments) continue;
      check(old[i], now[i]);
      if (moved_.findings.empty()) put_back(old[i], now[i]);
    }
    if (count == 0) return {};
    if (moved_.findings.empty()) open();
    return std::move(moved_);
  }

 private:
  [[nodiscard]] bool has_moved_behind(const Segment& old, const Segment& now) const {
    return is_data_load(old) && old.type == now.type && now.filesz.value != 0 &&
           now.offset.value >= before_.source().size() && old.offset != now.offset;
  }

  void differs(const Segment& segment, const char* what) {
    moved_.findings.push_back(verify_finding(
        "verify-segment", fmt::format("the segment at {:#x} stands elsewhere in the file, and {}",
                                      segment.vaddr.value, what)));
  }

  void check(const Segment& old, const Segment& now) {
    Segment same = old;
    same.offset = now.offset;
    if (same.flags != now.flags || same.vaddr != now.vaddr || same.paddr != now.paddr ||
        same.filesz != now.filesz || same.memsz != now.memsz || same.align != now.align) {
      return differs(old, "is not what it was");
    }
    const std::uint64_t page = std::max(now.align.value, kFilePage);
    if (!std::has_single_bit(page) || now.offset.value % page != now.vaddr.value % page) {
      return differs(old, "cannot be mapped from there");
    }
    check_pages(old, now, page);
    const auto bytes = after_.source().slice(now.offset, now.filesz, "a segment");
    const auto left = after_.source().slice(old.offset, old.filesz, "what it leaves");
    if (!bytes || !left || !std::ranges::equal(*bytes, *left)) {
      return differs(old, "the bytes that it leaves are others");
    }
    check_names(now);
  }

  void check_pages(const Segment& old, const Segment& now, std::uint64_t page) {
    bool shared = false;
    for (const Segment& other : before_.segments()) {
      if (other.index >= old.index) break;
      shared = shared || (is_data_load(other) && share_a_page(other, old, kFilePage));
    }
    if (!shared) differs(old, "none maps its pages before it");
    for (const Segment& other : after_.segments()) {
      if (other.index == now.index || other.type != PT_LOAD || other.filesz.value == 0) continue;
      if (share_a_page(other, now, page)) return differs(old, "another maps the same pages there");
    }
  }

  // All that names bytes of the segment by their address names them by their offset too.
  void check_names(const Segment& now) {
    const auto names = [&](VirtAddr address, FileOffset offset) {
      return address.value - now.vaddr.value == offset.value - now.offset.value;
    };
    for (const Segment& other : after_.segments()) {
      if (other.filesz.value == 0 || !now_holds(now, other.vaddr)) continue;
      if (!names(other.vaddr, other.offset)) differs(now, "a program header names its old place");
    }
    for (const Section& section : after_.sections()) {
      if (!section.allocated() || section.nobits() || section.size.value == 0) continue;
      if (now_holds(now, section.addr) && !names(section.addr, section.offset)) {
        differs(now, "a section header names its old place");
      }
    }
  }
  static bool now_holds(const Segment& now, VirtAddr address) {
    return in_range(address.value, now.vaddr.value, now.filesz.value);
  }

  // --- as it was ---

  void put(std::uint64_t at, Bytes bytes) {
    auto done = moved_.plan->replace(after_.source(), FileOffset{at}, std::move(bytes), "put back");
    if (!done) moved_.findings.push_back(verify_finding("verify-segment", done.error().message));
  }

  void put_offset(std::uint64_t at, std::uint64_t value) {
    const unsigned word = after_.header().word();
    Bytes field(word);
    store_uint(field, 0, word, after_.header().order, value);
    put(at, std::move(field));
  }

  static bool goes_along(const Segment& now, FileOffset offset, VirtAddr address) {
    return offset >= now.offset && offset.value - now.offset.value <= now.memsz.value &&
           address.value - now.vaddr.value == offset.value - now.offset.value;
  }

  // .bss has no bytes, and its offset is only said to be at the segment's end, or near it.
  static bool goes_along(const Segment& now, const Section& section) {
    if (!section.allocated()) return false;
    if (goes_along(now, section.offset, section.addr)) return true;
    return section.nobits() && (section.flags & SHF_TLS) == 0 && section.offset >= now.offset &&
           section.offset.value - now.offset.value <= now.memsz.value &&
           section.addr >= now.vaddr && section.addr.value - now.vaddr.value <= now.memsz.value;
  }

  void put_back(const Segment& old, const Segment& now) {
    const std::uint64_t by = now.offset.value - old.offset.value;
    put(now.offset.value, Bytes(static_cast<std::size_t>(now.filesz.value)));
    for (const Segment& other : after_.segments()) {
      const bool inner = other.type != PT_LOAD && other.filesz.value != 0 &&
                         goes_along(now, other.offset, other.vaddr);
      if (!inner && other.index != now.index) continue;
      put_offset(offset_field(after_.header(), other), other.offset.value - by);
    }
    for (const Section& section : after_.sections()) {
      if (!goes_along(now, section)) continue;
      put_offset(offset_field(after_.header(), section), section.offset.value - by);
      moved_.sections.push_back(section.name);
    }
  }

  void open() {
    // The end of the result is judged as it is: without the segments it would be another.
    compare_appended(before_, after_, moved_.findings);
    if (!moved_.findings.empty()) return;
    auto file = ElfFile::open(planned_source(after_.source(), *moved_.plan));
    if (file) file = without_end(std::move(*file));
    if (file) {
      moved_.put_back = std::move(*file);
    } else {
      moved_.findings.push_back(verify_finding("verify-segment", file.error().message));
    }
  }

  // Where the segments stood, and the padding before them, there is nothing any more.
  Result<ElfFile> without_end(ElfFile file) {
    const std::uint64_t size = file.source().size();
    for (const auto& [begin, end] : FileRanges(file).unclaimed(before_.source().size())) {
      if (end != size) continue;
      const Size kept{std::max(begin, before_.source().size())};
      moved_.cut = std::make_unique<Plan>();
      moved_.uncut = std::make_unique<ElfFile>(std::move(file));
      if (auto done = moved_.cut->cut(moved_.uncut->source(), kept); !done)
        return tl::unexpected(done.error());
      return ElfFile::open(planned_source(moved_.uncut->source(), *moved_.cut));
    }
    return file;
  }

  const ElfFile& before_;
  const ElfFile& after_;
  MovedData moved_;
};

}  // namespace

std::optional<MovedData> put_data_back(const ElfFile& before, const ElfFile& after) {
  return DataReturn(before, after).run();
}

}  // namespace reprobe
