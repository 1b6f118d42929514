#include "libprobe/verify/compare_process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "libprobe/elf/dynamic_tables.hpp"
#include "libprobe/elf/same_bytes.hpp"
#include "libprobe/verify/packed_relocations.hpp"
#include "libprobe/verify/process_image.hpp"
#include "libprobe/verify/verify_finding.hpp"

namespace reprobe {
namespace {

// A file that is quite another says it often enough.
constexpr std::size_t kManyProcessFindings = 16;

// Fields of ElfN_Ehdr: System V ABI, "ELF Header".
struct HeaderField {
  std::string_view name;
  std::uint64_t at32, size32, at64, size64;
  bool follows{};  // where a table is, or its size: the tables themselves are compared
};
constexpr std::array<HeaderField, 14> kHeaderFields{{
    {"e_ident", 0, 16, 0, 16},
    {"e_type", 16, 2, 16, 2},
    {"e_machine", 18, 2, 18, 2},
    {"e_version", 20, 4, 20, 4},
    {"e_entry", 24, 4, 24, 8},
    {"e_phoff", 28, 4, 32, 8, true},
    {"e_shoff", 32, 4, 40, 8, true},
    {"e_flags", 36, 4, 48, 4},
    {"e_ehsize", 40, 2, 52, 2},
    {"e_phentsize", 42, 2, 54, 2},
    {"e_phnum", 44, 2, 56, 2, true},
    {"e_shentsize", 46, 2, 58, 2},
    {"e_shnum", 48, 2, 60, 2, true},
    {"e_shstrndx", 50, 2, 62, 2, true},
}};

bool is_of_segments(const HeaderField& field) {
  return field.name == "e_phoff" || field.name == "e_phnum";
}

class ProcessComparer {
 public:
  ProcessComparer(const ElfFile& before, const ElfFile& after, ProcessClaims claims,
                  std::vector<Finding>& out)
      : before_(before), after_(after), claims_(std::move(claims)), out_(out) {}

  void run() {
    compare_header();
    if (!claims_.room) compare_segment_table();
    sort_claims();
    for (const std::uint64_t page : page_sizes(before_)) {
      const auto old = ProcessImage::of(before_, page);
      const auto now = ProcessImage::of(after_, page);
      // What no loader maps has no process; its table is the same.
      if (!old && !claims_.room) return;
      if (!old || !now) return differs("verify-segment", "the result cannot be loaded as it was");
      compare(*old, *now);
      if (full_) return;
      if (page == kSmallestPage && !claims_.relocated) compare_relocated(*old);
    }
  }

 private:
  void differs(std::string rule, std::string message) {
    if (full_) return;
    full_ = ++count_ == kManyProcessFindings;
    out_.push_back(verify_finding(std::move(rule), std::move(message)));
  }

  // --- the ELF header ---

  void compare_header() {
    const bool is64 = before_.header().is64;
    const Size size{is64 ? 64U : 52U};
    const auto a = before_.source().slice(FileOffset{0}, size, "the ELF header");
    const auto b = after_.source().slice(FileOffset{0}, size, "the ELF header");
    if (!a || !b) return differs("verify-header", "the ELF header is cut off");
    for (const HeaderField& field : kHeaderFields) {
      const auto at = static_cast<std::size_t>(is64 ? field.at64 : field.at32);
      const auto width = static_cast<std::size_t>(is64 ? field.size64 : field.size32);
      if (field.follows && (claims_.room || !is_of_segments(field))) {
        claims_.bytes.push_back({at, at + width});
        continue;
      }
      if (std::ranges::equal(a->subspan(at, width), b->subspan(at, width))) continue;
      differs("verify-header",
              fmt::format("{} of the ELF header is another; expected {}, found {}", field.name,
                          text(a->subspan(at, width)), text(b->subspan(at, width))));
    }
  }

  [[nodiscard]] std::string text(ByteView field) const {
    if (field.size() <= 8) {
      return fmt::format("{:#x}", load_uint(field, 0, static_cast<unsigned>(field.size()),
                                            before_.header().order));
    }
    std::string digits;
    for (const std::byte byte : field) digits += fmt::format("{:02x}", std::to_integer<int>(byte));
    return digits;
  }

  void compare_segment_table() {
    const ElfHeader& header = before_.header();
    const auto size = checked_mul(header.phnum, header.phentsize);
    if (!size || header.phnum != after_.header().phnum) {
      return differs("verify-segment", "the program headers are others");
    }
    const auto a = before_.source().slice(header.phoff, Size{*size}, "program headers");
    const auto b = after_.source().slice(header.phoff, Size{*size}, "program headers");
    if (a && b && std::ranges::equal(*a, *b)) return;
    std::uint64_t address = 0;
    for (std::size_t i = 0; i < std::min(before_.segments().size(), after_.segments().size());
         ++i) {
      const Segment& old = before_.segments()[i];
      const Segment& now = after_.segments()[i];
      address = old.vaddr.value;
      if (old.type != now.type || old.flags != now.flags || old.offset != now.offset ||
          old.vaddr != now.vaddr || old.filesz != now.filesz || old.memsz != now.memsz ||
          old.align != now.align) {
        break;
      }
    }
    if (a || b) {
      differs("verify-segment", fmt::format("the program header of {:#x} changed", address));
    }
  }

  // --- the image ---

  // Sorted and apart.
  void sort_claims() {
    std::erase_if(claims_.bytes, [](const Range& range) { return range.begin >= range.end; });
    merge_ranges(claims_.bytes);
  }

  // Both lists ascend: each address is met once.
  void compare(const ProcessImage& old, const ProcessImage& now) {
    constexpr std::uint64_t kEnd = std::numeric_limits<std::uint64_t>::max();
    auto a = old.pieces().begin();
    auto b = now.pieces().begin();
    std::uint64_t at = 0;
    while (!full_ && (a != old.pieces().end() || b != now.pieces().end())) {
      const auto from = [&](const auto& it, const ProcessImage& image) {
        return it == image.pieces().end() ? kEnd : std::max(it->begin, at);
      };
      const std::uint64_t from_a = from(a, old), from_b = from(b, now);
      const std::uint64_t begin = std::min(from_a, from_b);
      const MappedPiece* in_a = from_a == begin && a != old.pieces().end() ? &*a : nullptr;
      const MappedPiece* in_b = from_b == begin && b != now.pieces().end() ? &*b : nullptr;
      std::uint64_t end = in_a != nullptr ? in_a->end : from_a;
      end = std::min(end, in_b != nullptr ? in_b->end : from_b);
      compare_piece(in_a, in_b, begin, end);
      at = end;
      if (in_a != nullptr && in_a->end == end) ++a;
      if (in_b != nullptr && in_b->end == end) ++b;
    }
  }

  void compare_piece(const MappedPiece* old, const MappedPiece* now, std::uint64_t begin,
                     std::uint64_t end) {
    if (old == nullptr) {
      if (!claims_.room || (now->flags & PF_W) != 0) {
        differs("verify-segment", fmt::format("{:#x} is mapped, and was not", begin));
      }
      return;
    }
    if (now == nullptr) {
      return differs("verify-segment", fmt::format("{:#x} is not mapped any more", begin));
    }
    if (old->flags != now->flags) {
      return differs("verify-segment",
                     fmt::format("{:#x} has another protection; expected {}, found {}", begin,
                                 old->flags, now->flags));
    }
    if (old->stated && !now->stated) {
      return differs("verify-segment", fmt::format("{:#x} is in no segment any more", begin));
    }
    if (old->stated) return compare_bytes(*old, *now, begin, end);
    if (!now->stated) return;
    const bool grown = claims_.room && (now->flags & PF_W) == 0 && old->offset &&
                       old->offset_at(begin) == now->offset_at(begin);
    if (!grown) {
      differs("verify-segment", fmt::format("{:#x} is in a segment, and was not", begin));
    }
  }

  void compare_bytes(const MappedPiece& old, const MappedPiece& now, std::uint64_t begin,
                     std::uint64_t end) {
    if (!old.offset || !now.offset) {
      // Zeros stay zeros: from the file only where it is one.
      if (old.offset || now.offset) {
        differs("verify-segment",
                fmt::format("{:#x} comes from the file in one of the two only", begin));
      }
      return;
    }
    const std::uint64_t from = *old.offset_at(begin);
    auto claim = std::ranges::upper_bound(claims_.bytes, from, {}, &Range::end);
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t offset = from + (at - begin);
      const bool more = claim != claims_.bytes.end() && claim->begin - from < end - begin;
      const bool inside = claim != claims_.bytes.end() && claim->begin <= offset;
      const std::uint64_t next =
          inside ? claim->end
                 : (more && claim->begin > offset ? claim->begin : from + (end - begin));
      const std::uint64_t stop = begin + std::min(next - from, end - begin);
      if (!inside && !same_bytes(at, offset, *now.offset_at(at), stop - at)) return;
      if (inside) ++claim;
      at = stop;
    }
  }

  // In pieces, so that a source that reads need not hold all. Behind the end of a damaged input
  // there is no byte to keep.
  bool same_bytes(std::uint64_t address, std::uint64_t old, std::uint64_t now, std::uint64_t size) {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
    const std::uint64_t file = before_.source().size();
    size = std::min(size, file - std::min(old, file));
    for (std::uint64_t done = 0; done < size;) {
      const Size part{std::min(kPiece, size - done)};
      const auto a = before_.source().slice(FileOffset{old + done}, part, "loaded bytes");
      const auto b = after_.source().slice(FileOffset{now + done}, part, "loaded bytes");
      if (!a || !b) {
        differs("verify-image", fmt::format("the bytes at {:#x} are cut off", address + done));
        return false;
      }
      if (const auto differ = first_mismatch(*a, *b)) {
        differs("verify-image",
                fmt::format("the loaded byte at {:#x} is another; expected {:#04x}, found {:#04x}",
                            address + done + *differ, std::to_integer<unsigned>((*a)[*differ]),
                            std::to_integer<unsigned>((*b)[*differ])));
        return false;
      }
      done += part.value;
    }
    return true;
  }

  // --- relocations ---

  // No relocation writes what was claimed: it would write over the new bytes. (The tables are
  // loaded bytes, and compared as those.)
  void compare_relocated(const ProcessImage& image) {
    if (claims_.bytes.empty()) return;
    const unsigned word = before_.header().word();
    const auto check = [&](VirtAddr place) {
      const MappedPiece* piece = full_ ? nullptr : image.at(place.value);
      if (piece == nullptr || !piece->offset) return;
      const std::uint64_t offset = *piece->offset_at(place.value);
      const auto claim = std::ranges::upper_bound(claims_.bytes, offset, {}, &Range::end);
      if (claim == claims_.bytes.end() || claim->begin >= offset + word) return;
      differs("verify-relocation",
              fmt::format("the dynamic linker writes at {:#x}, which is another now", place.value));
    };
    for (const DynamicTable& table : dynamic_tables(before_)) {
      for_each_relocation(before_, table,
                          [&](const DynamicRelocation& entry) { check(entry.place); });
    }
    if (!each_packed_place(before_, check)) {
      differs("verify-relocation", "the packed relocations cannot be read");
    }
  }

  const ElfFile& before_;
  const ElfFile& after_;
  ProcessClaims claims_;
  std::vector<Finding>& out_;
  std::size_t count_{};
  bool full_{};
};

}  // namespace

void compare_process(const ElfFile& before, const ElfFile& after, ProcessClaims claims,
                     std::vector<Finding>& out) {
  ProcessComparer(before, after, std::move(claims), out).run();
}

}  // namespace reprobe
