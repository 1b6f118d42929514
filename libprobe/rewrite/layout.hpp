// Room for new bytes of readable, executable memory in a finished file. Nothing that is there
// moves, the program header table apart.
//
//   auto room = find_room(file, {.size = {upper_bound}, .align = {16}, .reach = kReachRel32});
//   ... code that refers to its own address room->address is made ...
//   place(plan, headers, file, *room, {contents, sections, eh_frame_hdr});
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "libprobe/elf/file.hpp"
#include "libprobe/rewrite/plan.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

// The section that begins the room: a file that has it was given room before.
inline constexpr std::string_view kRoomSection = ".text.reprobe";

// What a rel32 of x86-64 and a 32-bit pc-relative word of .eh_frame span.
inline constexpr Size kReachRel32{std::uint64_t{1} << 31};

enum class RoomKind {
  gap,           // behind the code, in the padding of its page: the segment grows
  spare_header,  // a new PT_LOAD at the end of the file; two PT_NOTE that touch became one for it
  moved_headers  // a new PT_LOAD at the end of the file; the program header table has moved
};

struct RoomRequest {
  Size size;                // an upper bound of the contents, not 0
  Size align{16};           // of their first byte; a power of two, at most 4096
  Size reach{kReachRel32};  // no two bytes of the loaded file and the room lie further apart
};

// Where the new bytes will stand. Decided before they are known, from an upper bound of their size,
// because code refers to its own address.
struct Room {
  VirtAddr address;
  FileOffset offset;
  Size size;  // of the contents, at most
  RoomKind kind{};
  // The program header table of the result; where it stands now but for moved_headers.
  FileOffset headers;
  VirtAddr headers_address;
};

// Errors: refused (every reason below), unreadable (no section headers).
[[nodiscard]] Result<Room> find_room(const ElfFile& file, const RoomRequest& request);

struct RoomContents {
  Bytes bytes;                        // at most Room::size, not empty
  std::span<const Section> sections;  // headers to add: `addr` in the room, `offset` is set here
  // Where PT_GNU_EH_FRAME points from now on: address in the room and size. It stays as it is
  // without. Refused in a file without PT_GNU_EH_FRAME.
  std::optional<std::pair<VirtAddr, Size>> eh_frame_hdr;
};

// Plans the bytes of the room and the program headers that load them, and adds the section headers
// to `table`. In a new segment the bytes must be the first that the plan appends. Errors: refused
// (see SectionTable::add), internal (the contents are not within the room, the plan has appended
// bytes already).
[[nodiscard]] Result<void> place(Plan& plan, SectionTable& table, const ElfFile& file,
                                 const Room& room, RoomContents contents);

}  // namespace reprobe
