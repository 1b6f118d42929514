#include "libprobe/rewrite/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "libprobe/rewrite/layout_block.hpp"
#include "libprobe/rewrite/layout_gap.hpp"
#include "libprobe/rewrite/layout_headers.hpp"
#include "libprobe/rewrite/layout_loads.hpp"

namespace reprobe {
namespace {

// What a file may grow by so that a table has the same distance between address and offset as the
// first segment: a .bss is that much longer than what the file has behind its loaded bytes.
constexpr std::uint64_t kMostPadding = 0x10000;

// Each try looks at every header; files have one or two segments of code.
constexpr int kMostTries = 8;

// What moves keeps its place modulo this: notes and words are aligned to 8 at most.
constexpr std::uint64_t kBlockAlign = 16;

// Older kernels take program headers of one page at most (load_elf_phdrs: ELF_MIN_ALIGN).
constexpr std::uint64_t kMostProgramHeaders = 0x1000;

// User space of the kernels: 2^47 on x86-64 and more elsewhere; 3 GiB on 32 bits.
std::uint64_t top_of_memory(bool is64) {
  return is64 ? std::uint64_t{1} << 47 : std::uint64_t{0xc0000000};
}

tl::unexpected<Error> refused(std::string where, std::string why) {
  return fail(ErrorCode::refused, std::move(where), std::move(why));
}

Result<void> check_file(const ElfFile& file, const RoomRequest& request) {
  if (file.header().type != ET_EXEC && file.header().type != ET_DYN)
    return refused("e_type", "neither a program nor a library");
  if (file.sections().empty())
    return fail(ErrorCode::unreadable, "e_shoff", "the file has no section headers");
  if (!request.notes && file.section(kSledSection) != nullptr)
    return refused(std::string(kSledSection), "the file was given room before");
  const auto without_bytes = [](const Section& s) {
    return s.executable() && s.nobits() && s.size.value != 0;
  };
  if (std::ranges::any_of(file.sections(), without_bytes))
    return refused("", "a separate debug file: its code is elsewhere");
  if (request.size.value == 0 || !std::has_single_bit(request.align.value) ||
      request.align.value > 0x1000)
    return fail(ErrorCode::internal, "", "room of no size or of an impossible alignment");
  return check_headers(file);
}

class RoomFinder {
 public:
  RoomFinder(const ElfFile& file, const RoomRequest& request, LoadMap map)
      : file_(file), request_(request), map_(std::move(map)) {
    room_.size = request.size;
    room_.notes = request.notes;
  }

  Result<Room> find() {
    if (in_gap()) return room_;
    const LoadedAs as = loaded_as(file_);
    // Linux before 6.7 clears memory behind the last segment's file bytes (load_elf_interp,
    // padzero): it must be writable there, or no program starts any more.
    if (as == LoadedAs::interpreter)
      return refused("", "a dynamic linker cannot have another segment, and its code has no gap");
    const std::size_t more = new_headers(room_);
    if (more == 1 && spare_header(file_)) {
      room_.kind = RoomKind::spare_header;
      return in_new_segment(0, Size{0});
    }
    const Size table = headers_size(file_, file_.segments().size() + more);
    if (as == LoadedAs::program && table.value > kMostProgramHeaders)
      return refused("e_phnum", "more program headers than older kernels take");
    if (const auto block = block_behind_headers(file_, more)) return behind_block(*block);
    if (more == 2) {
      const auto block = block_behind_headers(file_, 1);
      room_.joined = block && notes_at_end(file_, *block);
      if (room_.joined) return behind_block(*block);
    }
    room_.kind = RoomKind::moved_headers;
    return as == LoadedAs::library ? with_table(table) : with_table_before_518(table);
  }

 private:
  bool in_gap() {
    if (room_.notes && !headers_grow_in_place(file_)) return false;
    int tries = 0;
    for (const Segment& load : map_.loads) {
      const std::uint32_t flags = load.flags & (PF_R | PF_W | PF_X);
      if (flags != (PF_R | PF_X) && !(room_.notes && flags == PF_R)) continue;
      if (++tries > kMostTries) return false;
      const auto place = gap_behind(file_, map_, load, request_.size, request_.align.value);
      if (!place) continue;
      const VirtAddr address = address_of(load, *place);
      if (!in_reach({address.value + request_.size.value})) return false;
      room_.kind = RoomKind::gap;
      room_.offset = *place;
      room_.address = address;
      room_.grows = load.index;
      return true;
    }
    return false;
  }

  static VirtAddr address_of(const Segment& load, FileOffset place) {
    return {place.value - load.offset.value + load.vaddr.value};
  }

  Result<Room> behind_block(const MovableBlock& block) {
    room_.kind = RoomKind::grown_headers;
    return block.size.value == 0 ? in_new_segment(0, Size{0})
                                 : in_new_segment(block.offset.value % kBlockAlign,
                                                  Size{kBeforeBlock + block.size.value});
  }

  // What comes first in the segment, and the contents behind it, at the end of the file. The first
  // byte stands at `place` modulo kBlockAlign.
  Result<Room> in_new_segment(std::uint64_t place, Size first) {
    const auto least = align_up(file_.source().size(), std::max(request_.align.value, kBlockAlign));
    const auto page = align_up(map_.end.value, map_.page);
    if (!least || !page) return too_high();
    if (const auto offset = at_distance(*least + place, *page + place, kBlockAlign)) {
      return laid_out({*offset + *request_.distance}, {*offset}, first);
    }
    return laid_out({*page + (*least + place) % map_.page}, {*least + place}, first);
  }

  // The first offset from `least` on, and a multiple of `align` behind it, at which the wanted
  // distance gives an address from `lowest` on. Nothing where that costs too many bytes.
  [[nodiscard]] std::optional<std::uint64_t> at_distance(std::uint64_t least, std::uint64_t lowest,
                                                         std::uint64_t align) const {
    if (!request_.distance || *request_.distance % map_.page != 0) return std::nullopt;
    const std::uint64_t address = least + *request_.distance;
    if (address < least || address >= top_of_memory(file_.header().is64)) return std::nullopt;
    if (address >= lowest) return least;
    const auto more = align_up(lowest - address, align);
    if (!more || *more > kMostShared) return std::nullopt;
    return least + *more;
  }

  // GNU strip and objcopy put a segment that begins with the table directly behind the loaded bytes
  // and do not move it to a congruent offset (assign_file_positions_for_load_sections, binutils
  // 2.40): they keep its addresses only where it begins at that place in its page.
  Result<Room> with_table(Size table) {
    const auto page = align_up(map_.end.value, map_.page);
    if (!page) return too_high();
    const std::uint64_t address = *page + place_in_page();
    const auto offset =
        checked_add(file_.source().size(), (address - file_.source().size()) % map_.page);
    if (!offset) return too_high();
    if (const auto shared = at_distance(*offset, *page, map_.page)) {
      return laid_out({*shared + *request_.distance}, {*shared}, table);
    }
    return laid_out({address}, {*offset}, table);
  }

  // The same at the distance of the first segment.
  Result<Room> with_table_before_518(Size table) {
    const Segment& first = map_.loads.front();
    if (first.offset.value > first.vaddr.value) return no_place(table);
    const std::uint64_t distance = first.vaddr.value - first.offset.value;
    const auto lowest = checked_add(distance, file_.source().size());
    const auto page = lowest ? align_up(std::max(*lowest, map_.end.value), map_.page) : lowest;
    if (!page) return too_high();
    const std::uint64_t address = *page + place_in_page();
    if (address - *lowest > kMostPadding) return no_place(table);
    return laid_out({address}, {address - distance}, table);
  }

  Result<Room> laid_out(VirtAddr address, FileOffset offset, Size first) {
    const auto start = checked_add(address.value, first.value);
    const auto contents = start ? align_up(*start, request_.align.value) : std::nullopt;
    const auto end = contents ? checked_add(*contents, room_.size.value) : std::nullopt;
    if (!end || *end > top_of_memory(file_.header().is64)) return too_high();
    if (!in_reach({*end}))
      return refused("", fmt::format("the new bytes would be out of reach; expected at most {:#x} "
                                     "bytes from the first loaded byte to the last, found {:#x}",
                                     request_.reach.value, *end - map_.begin.value));
    room_.segment = offset;
    room_.segment_address = address;
    room_.address = {*contents};
    room_.offset = {offset.value + (*contents - address.value)};
    return room_;
  }

  // Words of the table are aligned to 4 at least: what processors of 64 bits read in one go.
  [[nodiscard]] std::uint64_t place_in_page() const {
    const std::uint64_t place = map_.file_end.value % map_.page;
    return place % 4 == 0 ? place : (place + 7) / 8 * 8;
  }

  static std::optional<std::uint64_t> align_up(std::uint64_t value, std::uint64_t align) {
    const auto end = checked_add(value, align - 1);
    if (!end) return std::nullopt;
    return *end & ~(align - 1);
  }

  [[nodiscard]] bool in_reach(VirtAddr end) const {
    return std::max(end, map_.end).value - map_.begin.value <= request_.reach.value;
  }

  static tl::unexpected<Error> too_high() {
    return refused("", "no address is left above the loaded segments");
  }

  static tl::unexpected<Error> no_place(Size table) {
    return refused(
        "e_phoff",
        fmt::format("the program headers cannot grow, and not move to where Linux before "
                    "5.18 looks for them; expected {:#x} bytes above the loaded ones "
                    "after at most {:#x} more in the file, found none",
                    table.value, kMostPadding));
  }

  const ElfFile& file_;
  const RoomRequest& request_;
  LoadMap map_;
  Room room_;
};

}  // namespace

Result<Room> find_room(const ElfFile& file, const RoomRequest& request) {
  if (auto done = check_file(file, request); !done) return tl::unexpected(done.error());
  auto map = load_map(file);
  if (!map) return tl::unexpected(map.error());
  return RoomFinder(file, request, std::move(*map)).find();
}

}  // namespace reprobe
