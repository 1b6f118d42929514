// find_room() and place() on files made by hand: where the room lies and what the headers
// of the result say. That such files run is shown by tests/live/layout_test.py.
#include <LIEF/ELF.hpp>

#include "catch.hpp"
#include "layout_sample.hpp"
#include "libprobe/rewrite/layout.hpp"

using namespace reprobe;
using namespace reprobe::test;

TEST_CASE("room in the padding behind the code", "[layout]") {
  for (const bool is64 : {true, false}) {
    for (const auto order : {std::endian::little, std::endian::big}) {
      Sample sample({.is64 = is64, .order = order});
      const ElfFile file = open_elf(sample.build());
      const auto [bytes, room] = with_room(file, 100);
      CHECK(room.kind == RoomKind::gap);
      CHECK(room.address == VirtAddr{kText + 16});
      CHECK(room.offset == FileOffset{sample.elf.offset(1) + 16});
      check_result(file, bytes, room, 100);
      const ElfFile after = open_elf(bytes);
      CHECK(after.segments()[sample.load].filesz == Size{116});
      CHECK(after.segments()[sample.load].memsz == Size{116});
      CHECK(after.header().phoff == file.header().phoff);
    }
  }
}

TEST_CASE("what lies in the padding keeps the room away", "[layout]") {
  Sample sample;
  const Bytes good = sample.build();
  const auto at = static_cast<std::size_t>(sample.elf.offset(1));
  const auto kind = [](Bytes bytes, std::uint64_t size = 64) {
    const auto room = find_room(open_elf(std::move(bytes)), {.size = Size{size}});
    REQUIRE(room);
    return room->kind;
  };
  CHECK(kind(good) == RoomKind::gap);
  // Up to the next page, and not one byte more.
  CHECK(kind(good, 0x1000 - 16) == RoomKind::gap);
  CHECK(kind(good, 0x1000 - 15) != RoomKind::gap);

  SECTION("a byte that is not zero") {
    Bytes bytes = good;
    bytes[at + 16 + 63] = std::byte{1};
    CHECK(kind(bytes) != RoomKind::gap);
    bytes[at + 16 + 63] = std::byte{0};
    bytes[at + 16 + 64] = std::byte{1};
    CHECK(kind(bytes) == RoomKind::gap);
  }
  SECTION("a segment with .bss") {
    Bytes bytes = good;
    sample.elf.poke(bytes, sample.elf.phdr(sample.load, "p_memsz"), 3);
    CHECK(kind(bytes) != RoomKind::gap);
  }
  SECTION("a writable segment") {
    Bytes bytes = good;
    sample.elf.poke(bytes, sample.elf.phdr(sample.load, "p_flags"), PF_R | PF_W | PF_X);
    CHECK(kind(bytes) != RoomKind::gap);
  }
  SECTION("a section without a segment") {
    Bytes bytes = good;
    sample.elf.poke(bytes, sample.elf.shdr(2, "sh_offset"), at + 20);
    CHECK(kind(bytes) != RoomKind::gap);
  }
  SECTION("the next segment's page, where pages are larger") {
    Bytes bytes = good;
    sample.elf.poke(bytes, sample.elf.phdr(sample.load, "p_align"), 0x4000);
    CHECK(kind(bytes) != RoomKind::gap);
  }
}

TEST_CASE("a new segment and a table that has moved", "[layout]") {
  for (const bool is64 : {true, false}) {
    for (const auto order : {std::endian::little, std::endian::big}) {
      for (const std::uint16_t type : {ET_EXEC, ET_DYN}) {
        Sample sample({.is64 = is64, .order = order, .type = type});
        // Without room behind the table in the segment that has it.
        const ElfFile file = open_elf(sample.build(is64 ? 64 + 3 * 56 : 52 + 3 * 32));
        const auto [bytes, room] = with_room(file, kTooLarge);
        CHECK(room.kind == RoomKind::moved_headers);
        check_result(file, bytes, room, kTooLarge);
        const ElfFile after = open_elf(bytes);
        REQUIRE(after.segments().size() == 4);
        const Segment& added = after.segments()[3];
        CHECK(added.type == PT_LOAD);
        CHECK(added.flags == (PF_R | PF_X));
        CHECK(added.filesz == added.memsz);
        CHECK(added.offset == after.header().phoff);
        CHECK(added.vaddr.value >= 0x3000);  // the page behind .bss
        CHECK(added.vaddr.value % 0x1000 == added.offset.value % 0x1000);
        // As the rule is for Linux before 5.18; ET_DYN without an entry is a library.
        if (type == ET_EXEC)
          CHECK(at_phdr_of_old_kernels(after.segments()[0], after.header().phoff) == added.vaddr);
      }
    }
  }
}

TEST_CASE("the table grows where notes and the interpreter's name can move", "[layout]") {
  ElfBuilder probe;
  const Bytes abi = gnu_note(probe, 1, 4), id = gnu_note(probe, NT_GNU_BUILD_ID, 5);
  Bytes interp = bytes_of(std::string_view("/lib64/ld-linux-x86-64.so.2", 28));
  constexpr std::uint64_t kBegin = 64 + 6 * 56;  // behind six headers

  Sample sample({.is64 = true, .order = std::endian::little, .type = ET_DYN, .entry = kText});
  sample.elf.section({.name = ".interp", .flags = SHF_ALLOC, .addr = kBegin, .bytes = interp});
  sample.elf.section({.name = ".note.ABI-tag",
                      .type = SHT_NOTE,
                      .flags = SHF_ALLOC,
                      .addr = kBegin + 28,
                      .align = 4,
                      .bytes = abi});
  sample.elf.section({.name = ".note.gnu.build-id",
                      .type = SHT_NOTE,
                      .flags = SHF_ALLOC,
                      .addr = kBegin + 28 + abi.size(),
                      .align = 4,
                      .bytes = id});
  sample.header(PT_PHDR, 64, 6 * 56, 8);
  sample.header(PT_INTERP, kBegin, interp.size(), 1);
  const std::uint64_t notes = abi.size() + id.size();
  SECTION("they move together") {
    sample.header(PT_NOTE, kBegin + 28, notes, 4);
    const ElfFile file = open_elf(sample.build(0x600));
    const std::string build_id = file.build_id();
    REQUIRE(build_id.size() == 40);
    const auto [bytes, room] = with_room(file, kTooLarge);
    CHECK(room.kind == RoomKind::grown_headers);
    check_result(file, bytes, room, kTooLarge);
    const ElfFile after = open_elf(bytes);
    CHECK(after.header().phoff == FileOffset{64});
    CHECK(after.header().phnum == 7);
    CHECK(after.build_id() == build_id);
    CHECK(after.segments()[0].filesz == Size{7 * 56});
    const Segment& name = after.segments()[1];
    const auto text = after.source().slice(name.offset, name.filesz, "");
    REQUIRE(text);
    CHECK(Bytes(text->begin(), text->end()) == interp);
    CHECK(after.offset_of(name.vaddr) == name.offset);
    const Section* section = after.section(".interp");
    CHECK(section->addr == name.vaddr);
    CHECK(section->offset == name.offset);
    CHECK(after.section(".note.ABI-tag")->addr == after.segments()[2].vaddr);
    // LLVM 14's strip wants the PT_LOAD to begin first.
    CHECK(after.load_segment(name.vaddr)->offset < name.offset);
  }
  SECTION("another owner's note stays, and the table with it") {
    sample.header(PT_NOTE, kBegin + 28, notes, 4);
    Bytes bytes = sample.build(0x600);
    bytes[kBegin + 28 + 12] = std::byte{'X'};
    const auto room = find_room(open_elf(std::move(bytes)), {.size = Size{kTooLarge}});
    REQUIRE(room);
    CHECK(room->kind == RoomKind::moved_headers);
  }
  SECTION("a named note stays") {
    sample.header(PT_NOTE, kBegin + 28, notes, 4);
    sample.elf.symbol({.name = "build_tag", .value = kBegin + 28, .size = 4, .shndx = 2});
    const auto room = find_room(open_elf(sample.build(0x600)), {.size = Size{kTooLarge}});
    REQUIRE(room);
    CHECK(room->kind == RoomKind::moved_headers);
  }
}

TEST_CASE("a header to spare", "[layout]") {
  ElfBuilder probe;
  SECTION("two PT_NOTE that touch") {
    const Bytes first = gnu_note(probe, 5, 4), second = gnu_note(probe, NT_GNU_BUILD_ID, 5);
    constexpr std::uint64_t kBegin = 0x400, kProperty = 0x6474e553;
    Sample sample;
    sample.elf.section({.name = ".note.gnu.property",
                        .type = SHT_NOTE,
                        .flags = SHF_ALLOC,
                        .addr = kBegin,
                        .align = 8,
                        .bytes = first});
    sample.elf.section({.name = ".note.gnu.build-id",
                        .type = SHT_NOTE,
                        .flags = SHF_ALLOC,
                        .addr = kBegin + first.size(),
                        .align = 4,
                        .bytes = second});
    sample.header(PT_NOTE, kBegin, first.size(), 8);
    sample.header(PT_NOTE, kBegin + first.size(), second.size(), 4);
    sample.header(kProperty, kBegin, first.size(), 8);
    Bytes bytes = sample.build(0x600);
    const ElfFile file = open_elf(bytes);
    const auto [output, room] = with_room(file, kTooLarge);
    CHECK(room.kind == RoomKind::spare_header);
    check_result(file, output, room, kTooLarge);
    const ElfFile after = open_elf(output);
    CHECK(after.segments().size() == file.segments().size());
    CHECK(after.segments()[0].filesz == Size{first.size() + second.size()});
    CHECK(after.segments()[0].align == Size{4});
    CHECK(after.build_id() == file.build_id());
    // Without PT_GNU_PROPERTY nothing but the PT_NOTE aligned to 8 says what it says.
    sample.elf.poke(bytes, sample.elf.phdr(2, "p_type"), 0x60000001);
    const auto other = find_room(open_elf(bytes), {.size = Size{kTooLarge}});
    REQUIRE(other);
    CHECK(other->kind != RoomKind::spare_header);
  }
  SECTION("PT_PHDR without PT_INTERP") {
    Sample sample;
    sample.header(PT_PHDR, 64, 4 * 56, 8);
    const ElfFile file = open_elf(sample.build());
    const auto [output, room] = with_room(file, kTooLarge);
    CHECK(room.kind == RoomKind::spare_header);
    check_result(file, output, room, kTooLarge);
  }
}

TEST_CASE("PT_GNU_EH_FRAME points into the room", "[layout]") {
  Sample sample;
  sample.header(PT_GNU_EH_FRAME, 0x300, 12, 4);
  const ElfFile file = open_elf(sample.build());
  const auto [output, room] = with_room(file, 64, Size{24});
  const ElfFile after = open_elf(output);
  CHECK(after.segments()[0].vaddr == room.address);
  CHECK(after.segments()[0].offset == room.offset);
  CHECK(after.segments()[0].memsz == Size{24});

  const ElfFile without = open_elf(Sample().build());
  const auto other = find_room(without, {.size = Size{64}});
  REQUIRE(other);
  Plan plan;
  auto table = SectionTable::of(without);
  REQUIRE(table);
  const auto done =
      place(plan, *table, without, *other,
            {.bytes = contents(64), .sections = {}, .eh_frame_hdr = {{other->address, Size{8}}}});
  REQUIRE(!done);
  CHECK(done.error().code == ErrorCode::refused);
}

TEST_CASE("another reader sees the room", "[layout]") {
  Sample sample({.is64 = true, .order = std::endian::little, .type = ET_EXEC});
  const ElfFile file = open_elf(sample.build(64 + 3 * 56));
  const auto [output, room] = with_room(file, kTooLarge);
  std::vector<std::uint8_t> raw;
  for (const std::byte b : output) raw.push_back(std::to_integer<std::uint8_t>(b));
  const auto binary = LIEF::ELF::Parser::parse(raw, "room");
  REQUIRE(binary);
  CHECK(binary->header().program_headers_offset() == room.segment.value);
  const auto& section = binary->get_section(std::string(kSledSection));
  CHECK(section.virtual_address() == room.address.value);
  CHECK(section.offset() == room.offset.value);
  const auto& segment = binary->segment_from_virtual_address(room.address.value);
  CHECK(segment.file_offset() == room.segment.value);
  CHECK(segment.virtual_size() == segment.physical_size());
}
