#include "libprobe/rewrite/layout_loads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace reprobe {
namespace {

constexpr std::uint64_t kSmallestPage = 0x1000, kLargestPage = 0x10000;
constexpr std::uint64_t DT_NULL = 0, DT_NEEDED = 1, DT_SONAME = 14;

tl::unexpected<Error> refused(const Segment& segment, std::string_view why) {
  return fail(ErrorCode::refused, fmt::format("program header {}", segment.index),
              std::string(why));
}

// Does any loader map the segment? p_offset and p_vaddr are congruent modulo p_align (System V ABI,
// "Program Header"); ld.so refuses others, the kernel maps them to a wrong place.
Result<void> check(const ElfFile& file, const Segment& load) {
  if (load.filesz > load.memsz) return refused(load, "more bytes in the file than in memory");
  const std::uint64_t limit = file.header().is64 ? std::uint64_t{1} << 47 : std::uint64_t{1} << 32;
  const auto end = checked_add(load.vaddr.value, load.memsz.value);
  if (!end || *end > limit) return refused(load, "the segment ends above the address space");
  const auto file_end = checked_add(load.offset.value, load.filesz.value);
  if (!file_end || *file_end > file.source().size())
    return refused(load, "the segment lies outside the file");
  const std::uint64_t align = std::max(load.align.value, kSmallestPage);
  if (!std::has_single_bit(align)) return refused(load, "p_align is not a power of two");
  if ((load.vaddr.value - load.offset.value) % std::min(align, kLargestPage) != 0)
    return refused(load, "address and offset are not congruent");
  return {};
}

// Does PT_DYNAMIC, as the dynamic linker finds it, have the tag? At its address, up to DT_NULL.
bool has_tag(const ElfFile& file, std::uint64_t wanted) {
  const auto dynamic = std::ranges::find(file.segments(), PT_DYNAMIC, &Segment::type);
  if (dynamic == file.segments().end()) return false;
  const ByteView bytes = file.bytes_at(dynamic->vaddr, dynamic->filesz);
  const unsigned word = file.header().word();
  for (std::size_t at = 0; bytes.size() - at >= 2 * std::size_t{word};
       at += 2 * std::size_t{word}) {
    const std::uint64_t tag = load_uint(bytes, at, word, file.header().order);
    if (tag == wanted) return true;
    if (tag == DT_NULL) break;
  }
  return false;
}

}  // namespace

Result<LoadMap> load_map(const ElfFile& file) {
  LoadMap map{.loads = {}, .page = kSmallestPage, .begin = {}, .end = {}, .file_end = {}};
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_LOAD) continue;
    if (auto done = check(file, segment); !done) return tl::unexpected(done.error());
    map.page = std::max(map.page, std::min(segment.align.value, kLargestPage));
    map.loads.push_back(segment);
  }
  if (map.loads.empty()) return fail(ErrorCode::refused, "", "nothing of the file is loaded");
  for (std::size_t i = 0; i < map.loads.size(); ++i) {
    const Segment& load = map.loads[i];
    if (i != 0 && load.vaddr < map.end)
      return refused(load, "the loaded segments overlap or are out of order");
    map.end = {load.vaddr.value + load.memsz.value};
    map.file_end = std::max(map.file_end, FileOffset{load.offset.value + load.filesz.value});
  }
  map.begin = map.loads.front().vaddr;
  return map;
}

LoadedAs loaded_as(const ElfFile& file) {
  const auto is_interp = [](const Segment& segment) { return segment.type == PT_INTERP; };
  if (file.header().type != ET_DYN || std::ranges::any_of(file.segments(), is_interp))
    return LoadedAs::program;
  // Nothing starts a library. A static PIE needs nothing and has no name; ld.so needs nothing, but
  // has a name (musl's is that of its libc).
  if (file.header().entry.value == 0 || has_tag(file, DT_NEEDED)) return LoadedAs::library;
  return has_tag(file, DT_SONAME) ? LoadedAs::interpreter : LoadedAs::program;
}

}  // namespace reprobe
