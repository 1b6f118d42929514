#include "libprobe/verify/new_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// What made room may stand this far behind the start of its segment: LLVM's objcopy takes the first
// of two segments at one offset for the one that holds the other.
constexpr std::uint64_t kBeforeBlock = 16;
// Behind the code of stubs everything begins, and the memory ends, at the next multiple of this.
constexpr std::uint64_t kBehindStubs = 8;

// compare_room_headers() has refused files with more.
constexpr std::size_t kMostHeaders = 1024;

// The new part of one segment.
class NewMemory {
 public:
  NewMemory(const ElfFile& after, const Segment& load, const Segment* old,
            std::vector<Finding>& out)
      : after_(after), load_(load), is_new_(old == nullptr), out_(out) {
    begin_ = load.offset.value + (is_new_ ? 0 : std::min(old->filesz, load.filesz).value);
    end_ = load.offset.value + load.filesz.value;
    const Section* stubs = after.section(kSledSection);
    if (stubs != nullptr && stubs->size.value != 0) {
      stubs_end_ = stubs->offset.value + stubs->size.value;
    }
  }

  void compare(std::vector<Range> contents) {
    if (is_new_) add_headers(contents);
    std::ranges::sort(contents, {}, &Range::begin);
    std::uint64_t at = begin_;
    for (const Range& range : contents) {
      if (range.end <= begin_ || range.begin >= end_) continue;
      const bool first = is_new_ && at == begin_;
      if (first && range.begin != begin_ && range.begin != begin_ + kBeforeBlock) {
        report(begin_, "holds nothing");
      }
      if (range.begin > at) check_padding(at, range.begin);
      at = std::max(at, range.end);
    }
    if (at >= end_) return;
    if (at != stubs_end_) return report(at, "holds nothing");
    check_padding(at, end_);
  }

 private:
  void report(std::uint64_t offset, std::string_view what) {
    const std::uint64_t address = load_.vaddr.value + (offset - load_.offset.value);
    out_.push_back(
        verify_finding("verify-segment", fmt::format("{:#x} in the new memory {}", address, what)));
  }

  // Headers that lead into the new segment, and the table where that is there.
  void add_headers(std::vector<Range>& contents) const {
    const auto is_inside = [&](FileOffset at) {
      return in_range(at.value, load_.offset.value, load_.filesz.value);
    };
    for (const Segment& s : after_.segments()) {
      const bool moves = s.type == PT_INTERP || s.type == PT_NOTE || s.type == PT_GNU_PROPERTY;
      if (moves && is_inside(s.offset)) {
        contents.push_back({s.offset.value, s.offset.value + s.filesz.value});
      }
    }
    const ElfHeader& header = after_.header();
    if (is_inside(header.phoff)) {
      contents.push_back(
          {header.phoff.value, header.phoff.value + header.phnum * header.phentsize});
    }
  }

  void check_padding(std::uint64_t from, std::uint64_t to) {
    const auto gap = after_.source().slice(FileOffset{from}, Size{to - from}, "padding");
    if (!gap) return report(from, "is not in the file");
    const bool behind_stubs = from == stubs_end_;
    const std::uint64_t address = load_.vaddr.value + (to - load_.offset.value);
    if (behind_stubs && (to - from >= kBehindStubs || address % kBehindStubs != 0)) {
      return report(from, "is more than the stubs need");
    }
    const std::byte filler = behind_stubs ? std::byte{0xcc} : std::byte{0};
    const auto found = std::ranges::find_if(*gap, [&](std::byte b) { return b != filler; });
    if (found == gap->end()) return;
    report(from + static_cast<std::uint64_t>(found - gap->begin()), "is neither padding nor known");
  }

  const ElfFile& after_;
  const Segment& load_;
  bool is_new_;
  std::vector<Finding>& out_;
  std::uint64_t begin_{}, end_{};           // offsets in the file
  std::optional<std::uint64_t> stubs_end_;  // likewise
};

}  // namespace

void compare_new_memory(const ElfFile& before, const ElfFile& after,
                        const std::vector<Range>& contents, std::vector<Finding>& out) {
  if (before.segments().size() > kMostHeaders || after.segments().size() > kMostHeaders) return;
  for (const Segment& load : after.segments()) {
    if (load.type != PT_LOAD) continue;
    const auto old = std::ranges::find_if(before.segments(), [&](const Segment& s) {
      return s.type == PT_LOAD && s.vaddr == load.vaddr && s.offset == load.offset;
    });
    const Segment* same = old == before.segments().end() ? nullptr : &*old;
    if (same != nullptr && same->filesz == load.filesz) continue;
    NewMemory(after, load, same, out).compare(contents);
  }
}

}  // namespace reprobe
