// Room for new bytes of readable memory, executable or not, in a finished file. No code or data
// moves; the program header table may, or what stands directly behind it.
//
//   auto room = find_room(file, {.size = {upper_bound}, .align = {16}, .reach = kReachRel32});
//   ... code that refers to its own address room->address is made ...
//   place(plan, headers, file, *room, {contents, sections, eh_frame_hdr});
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "libprobe/elf/file.hpp"
#include "libprobe/notes/stapsdt.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/rewrite/section_table.hpp"

namespace reprobe {

// What a rel32 of x86-64 and a 32-bit pc-relative word of .eh_frame span.
inline constexpr Size kReachRel32{std::uint64_t{1} << 31};

enum class RoomKind {
  gap,            // behind a segment's bytes, in the padding of its page: the segment grows
  spare_header,   // a new PT_LOAD at the end of the file, in the place of a header nobody needs
  grown_headers,  // the same, its header behind the others; what stood there has moved
  moved_headers   // the same, the program header table has moved
};

struct RoomRequest {
  Size size;                // an upper bound of the contents, not 0
  Size align{16};           // of their first byte; a power of two up to 4096
  Size reach{kReachRel32};  // no two loaded bytes, the room's included, lie further apart
  // Address minus offset that the room should have, modulo 2^64: perf reckons with one for all
  // sites of a file. It is kept where the file need not grow by more than kMostShared for it.
  std::optional<std::uint64_t> distance{};
  // The contents are notes: a PT_NOTE covers them, and nothing has to run in them, so that the gap
  // behind any bytes that are not writable serves too.
  bool notes{};
};

// A .bss is that much longer than what the file has behind its loaded bytes.
inline constexpr std::uint64_t kMostShared = 0x8000;

// Where the new bytes will stand. Decided before they are known, from an upper bound of their size,
// because code refers to its own address.
struct Room {
  VirtAddr address;
  FileOffset offset;
  Size size;  // of the contents, at most
  RoomKind kind{};
  // Where the new segment begins: in front of the contents stands the table (moved_headers), or
  // what stood behind it (grown_headers).
  FileOffset segment;
  VirtAddr segment_address;
  std::uint32_t grows{};  // gap: the program header of the segment in front of it
  bool notes{};           // as requested
  // grown_headers: the notes stand behind those that have moved, whose PT_NOTE covers both.
  bool joined{};
};

// Entries that a room in a new segment needs in the program header table.
[[nodiscard]] constexpr std::size_t new_headers(const Room& room) {
  return room.notes && !room.joined ? 2 : 1;
}

// The first of these that the file allows:
//
// 1. The gap between the code's last byte and what follows it in the file and in memory. Notes need
// an entry in the program header table too: one to spare, or padding behind the table.
//
// 2. A new PT_LOAD above all others, with an entry for it in the table where that is: every reader
// finds it there (Linux before 6.12 takes it to be behind the ELF header when it reads build-ids),
// and GNU strip, objcopy, eu-strip and llvm-strip keep the result. The entry is one that the file
// can do without (SpareHeader), or lies behind the others and what was there, the interpreter's
// name and GNU's notes (MovableBlock), stands in the new segment.
//
// 3. A new PT_LOAD that begins with the table. In a program AT_PHDR must be right by the rule of
// Linux before 5.18 too (at_phdr_of_old_kernels()); the file may have to grow for it, by 64 KiB at
// most. GNU strip (where the loaded bytes end at a multiple of 4 in the file) and llvm-strip keep
// such a file, but AT_PHDR is then right by the later rule only. eu-strip breaks it: elfutils 0.188
// fills with zeros what no section covers, the table too. (A section over the table is no help: GNU
// strip would move that.)
//
// Errors: unreadable (no section headers), refused (everything else: no way of these is open, the
// file was given room before, its headers contradict each other, a separate debug file).
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
