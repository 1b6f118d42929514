// place(): the bytes of a room, and the headers that load and name them.
#include <fmt/format.h>

#include <algorithm>

#include "libprobe/rewrite/layout.hpp"
#include "libprobe/rewrite/layout_headers.hpp"
#include "libprobe/rewrite/layout_loads.hpp"

namespace reprobe {
namespace {

tl::unexpected<Error> internal(std::string why) {
  return fail(ErrorCode::internal, std::string(kRoomSection), std::move(why));
}

class Placer {
 public:
  Placer(const ElfFile& file, const Room& room, std::uint64_t size)
      : file_(file),
        room_(room),
        size_(size),
        headers_(file.segments().begin(), file.segments().end()) {}

  Result<void> change_headers(std::uint64_t page) {
    if (room_.kind == RoomKind::gap) return grow(room_.offset.value + size_);
    if (room_.kind == RoomKind::spare_header) {
      const auto pair = mergeable_notes(file_);
      if (!pair) return internal("the room is not of this file");
      headers_[pair->grown] = pair->merged;
      headers_.erase(headers_.begin() + static_cast<std::ptrdiff_t>(pair->removed));
    }
    if (room_.kind == RoomKind::moved_headers) {
      const Size table = headers_size(file_, headers_.size() + 1);
      for (Segment& header : headers_) {
        if (header.type != PT_PHDR) continue;
        header.offset = room_.headers;
        header.vaddr = header.paddr = room_.headers_address;
        header.filesz = header.memsz = table;
      }
      if (room_.grows) {
        if (auto done = grow(room_.headers.value + table.value); !done) return done;
      }
    }
    add_load(page);
    return {};
  }

  Result<void> point_eh_frame_hdr(VirtAddr address, Size size) {
    const auto header = std::ranges::find(headers_, PT_GNU_EH_FRAME, &Segment::type);
    if (header == headers_.end())
      return fail(ErrorCode::refused, "", "the file has no PT_GNU_EH_FRAME to point to new tables");
    header->offset = {address.value - room_.address.value + room_.offset.value};
    header->vaddr = header->paddr = address;
    header->filesz = header->memsz = size;
    return {};
  }

  Result<void> write(Plan& plan, Bytes contents) const {
    auto table = encode_headers(file_, headers_);
    if (!table) return tl::unexpected(table.error());
    const bool moved = room_.kind == RoomKind::moved_headers;
    Bytes appended;
    if (moved && !room_.grows) {
      if (!add_at(appended, room_.headers, *table)) return internal("the table is in the file");
    } else {
      auto done = plan.replace(file_.source(), moved ? room_.headers : file_.header().phoff,
                               std::move(*table), "the program headers load the new bytes");
      if (!done) return done;
    }
    if (moved) {
      auto done = move_headers(plan, file_, room_.headers, headers_.size());
      if (!done) return done;
    }
    if (room_.kind == RoomKind::gap)
      return plan.replace(file_.source(), room_.offset, std::move(contents),
                          "new code in the padding behind the old");
    if (!add_at(appended, room_.offset, contents)) return internal("the room is in the file");
    const auto at =
        plan.append(file_.source(), std::move(appended), Size{1},
                    moved && !room_.grows ? "program headers and new code" : "new code");
    if (!at) return tl::unexpected(at.error());
    return {};
  }

 private:
  Result<void> grow(std::uint64_t end) {
    if (!room_.grows || *room_.grows >= headers_.size()) return internal("no segment to grow");
    Segment& header = headers_[*room_.grows];
    header.filesz = header.memsz = Size{end - header.offset.value};
    return {};
  }

  // Behind the other PT_LOADs: they stand in ascending order (System V ABI, "Program Header").
  void add_load(std::uint64_t page) {
    const bool with_table = room_.kind == RoomKind::moved_headers && !room_.grows;
    Segment load;
    load.type = PT_LOAD;
    load.flags = PF_R | PF_X;
    load.offset = with_table ? room_.headers : room_.offset;
    load.vaddr = load.paddr = with_table ? room_.headers_address : room_.address;
    load.filesz = load.memsz = Size{room_.offset.value + size_ - load.offset.value};
    load.align = Size{page};
    auto behind = headers_.end();
    while (std::prev(behind)->type != PT_LOAD) --behind;  // load_map() found one
    headers_.insert(behind, load);
  }

  // Zeros up to that offset in the output, then the bytes.
  [[nodiscard]] bool add_at(Bytes& appended, FileOffset offset, const Bytes& bytes) const {
    const std::uint64_t end = file_.source().size() + appended.size();
    if (offset.value < end) return false;
    appended.resize(static_cast<std::size_t>(appended.size() + (offset.value - end)));
    appended.insert(appended.end(), bytes.begin(), bytes.end());
    return true;
  }

  const ElfFile& file_;
  const Room& room_;
  std::uint64_t size_;
  std::vector<Segment> headers_;
};

bool in_room(const Room& room, std::uint64_t used, VirtAddr address, Size size) {
  const std::uint64_t at = address.value - room.address.value;
  return address >= room.address && at <= used && size.value <= used - at;
}

}  // namespace

Result<void> place(Plan& plan, SectionTable& table, const ElfFile& file, const Room& room,
                   RoomContents contents) {
  const std::uint64_t used = contents.bytes.size();
  if (used == 0 || used > room.size.value) return internal("the contents do not fit the room");
  if (room.kind != RoomKind::gap && !plan.appended().empty())
    return internal("bytes were appended before those of the room");
  const auto map = load_map(file);
  if (!map) return tl::unexpected(map.error());

  Placer placer(file, room, used);
  auto done = placer.change_headers(map->page);
  if (!done) return done;
  if (contents.eh_frame_hdr) {
    const auto& [address, size] = *contents.eh_frame_hdr;
    if (!in_room(room, used, address, size)) return internal(".eh_frame_hdr is not in the room");
    done = placer.point_eh_frame_hdr(address, size);
    if (!done) return done;
  }
  for (Section section : contents.sections) {
    if (!in_room(room, used, section.addr, section.size))
      return internal(fmt::format("{} is not in the room", section.name));
    section.offset = {section.addr.value - room.address.value + room.offset.value};
    done = table.add(section, "the new bytes have names");
    if (!done) return done;
  }
  return placer.write(plan, std::move(contents.bytes));
}

}  // namespace reprobe
