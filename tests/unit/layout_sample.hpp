// A file with code, data and .bss for the tests of the room, and what holds of every result.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/rewrite/layout.hpp"
#include "libprobe/rewrite/layout_loads.hpp"

namespace reprobe::test {

inline constexpr std::uint64_t kText = 0x1000, kData = 0x2000, kBss = 0x500;

// Headers (segment 0), code (1) and data with .bss (2), each in its page, in the file as in memory.
struct Sample {
  explicit Sample(ElfBuilder::Kind kind = {.is64 = true, .order = std::endian::little})
      : elf(kind) {}

  std::uint32_t header(std::uint32_t type, std::uint64_t at, std::uint64_t size,
                       std::uint64_t align) {
    return elf.segment({.type = type,
                        .flags = PF_R,
                        .offset = at,
                        .vaddr = at,
                        .filesz = size,
                        .memsz = size,
                        .align = align});
  }

  // `first_page`: how much of the first page is loaded.
  Bytes build(std::uint64_t first_page = 0x40 + 10 * 56) {
    elf.segment({.type = PT_LOAD,
                 .flags = PF_R,
                 .offset = 0,
                 .vaddr = 0,
                 .filesz = first_page,
                 .memsz = first_page,
                 .align = 0x1000});
    const auto text = elf.section({.name = ".text",
                                   .flags = SHF_ALLOC | SHF_EXECINSTR,
                                   .addr = kText,
                                   .align = 1,
                                   .bytes = code});
    load = elf.load(PF_R | PF_X, text);
    const auto data = elf.section({.name = ".data",
                                   .flags = SHF_ALLOC | SHF_WRITE,
                                   .addr = kData,
                                   .align = 1,
                                   .bytes = Bytes(16)});
    const auto bss = elf.section({.name = ".bss",
                                  .type = SHT_NOBITS,
                                  .flags = SHF_ALLOC | SHF_WRITE,
                                  .addr = kData + 16,
                                  .align = 1,
                                  .size = kBss});
    elf.load(PF_R | PF_W, data, bss);
    return elf.build();
  }

  ElfBuilder elf;
  Bytes code = bytes_of({0x90, 0xc3});
  std::uint32_t load{};
};

inline ElfFile open_elf(Bytes bytes) {
  auto file = ElfFile::open(memory_source(std::move(bytes)));
  REQUIRE(file);
  return std::move(*file);
}

inline std::string refusal(const ElfFile& file, RoomRequest request = {.size = Size{64}}) {
  const auto room = find_room(file, request);
  REQUIRE(!room);
  CHECK(room.error().code == ErrorCode::refused);
  return room.error().message;
}

inline constexpr std::uint64_t kTooLarge = 0x1000;  // for the padding of a page

inline Bytes contents(std::uint64_t size) {
  return Bytes(static_cast<std::size_t>(size), std::byte{0xcc});
}

// The file with room for `size` bytes, and the room.
inline std::pair<Bytes, Room> with_room(const ElfFile& file, std::uint64_t size,
                                        std::optional<Size> eh_frame_hdr = {}) {
  const auto room = find_room(file, {.size = Size{size}});
  INFO((room ? "" : room.error().message));
  REQUIRE(room);
  Plan plan;
  auto table = SectionTable::of(file);
  REQUIRE(table);
  Section section;
  section.name = kSledSection;
  section.type = SHT_PROGBITS;
  section.flags = SHF_ALLOC | SHF_EXECINSTR;
  section.addr = room->address;
  section.size = Size{size};
  section.addralign = Size{16};
  RoomContents wanted{.bytes = contents(size), .sections = {&section, 1}, .eh_frame_hdr = {}};
  if (eh_frame_hdr) wanted.eh_frame_hdr = {room->address, *eh_frame_hdr};
  REQUIRE(place(plan, *table, file, *room, std::move(wanted)));
  REQUIRE(table->write(plan));
  auto output = apply(plan, file.source());
  REQUIRE(output);
  return {std::move(*output), *room};
}

// What has to hold of every result, seen by the reader of headers alone.
inline void check_result(const ElfFile& before, const Bytes& bytes, const Room& room,
                         std::uint64_t size) {
  const ElfFile after = open_elf(bytes);
  REQUIRE(load_map(after));
  CHECK(after.offset_of(room.address) == room.offset);
  CHECK(after.bytes_at(room.address, Size{size}).size() == size);
  CHECK(after.load_segment(room.address)->flags == (PF_R | PF_X));
  const Section* section = after.section(kSledSection);
  REQUIRE(section != nullptr);
  CHECK(section->addr == room.address);
  CHECK(section->offset == room.offset);
  const auto whole = after.contents(*section);
  REQUIRE(whole);
  CHECK(Bytes(whole->begin(), whole->end()) == contents(size));
  // What was loaded is loaded, from the same bytes.
  for (const Segment& load : before.segments()) {
    if (load.type != PT_LOAD || load.filesz.value == 0) continue;
    CHECK(after.offset_of(load.vaddr) == load.offset);
  }
  CHECK(refusal(after) == "the file was given room before");
}

// A GNU note as it stands in files: name "GNU\0", `words` words of descriptor.
inline Bytes gnu_note(const ElfBuilder& elf, std::uint32_t type, std::size_t words) {
  return elf.note(std::string_view("GNU", 4), type, Bytes(words * 4, std::byte{7}));
}

}  // namespace reprobe::test
