// Room for notes: which program headers lead to them. The files are made by hand.
#include <algorithm>

#include "layout_sample.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

constexpr std::uint64_t kFirstPage = 0x40 + 10 * 56;

// The file with `size` bytes of notes, and the room.
std::pair<Bytes, Room> with_notes(const ElfFile& file, std::uint64_t size) {
  const auto room = find_room(file, {.size = Size{size}, .align = Size{4}, .notes = true});
  INFO((room ? "" : room.error().message));
  REQUIRE(room);
  Plan plan;
  auto table = SectionTable::of(file);
  REQUIRE(table);
  REQUIRE(place(plan, *table, file, *room,
                {.bytes = contents(size), .sections = {}, .eh_frame_hdr = {}}));
  auto output = apply(plan, file.source());
  REQUIRE(output);
  return {std::move(*output), *room};
}

// The PT_NOTE whose last bytes are the room's.
const Segment* note_over(const ElfFile& file, const Room& room, std::uint64_t size) {
  const Segment* found = nullptr;
  for (const Segment& segment : file.segments()) {
    if (segment.type != PT_NOTE || segment.offset > room.offset) continue;
    if (segment.offset.value + segment.filesz.value != room.offset.value + size) continue;
    CHECK(found == nullptr);
    found = &segment;
  }
  return found;
}

void check_notes(const ElfFile& before, const Bytes& bytes, const Room& room, std::uint64_t size) {
  const ElfFile after = open_elf(bytes);
  REQUIRE(load_map(after));
  const Segment* notes = note_over(after, room, size);
  REQUIRE(notes != nullptr);
  CHECK(notes->align.value == 4);
  CHECK(notes->filesz == notes->memsz);
  CHECK(after.offset_of(notes->vaddr) == notes->offset);
  const Segment* load = after.load_segment(room.address);
  REQUIRE(load != nullptr);
  CHECK((load->flags & PF_W) == 0);
  CHECK(after.bytes_at(room.address, Size{size}).size() == size);
  for (const Segment& old : before.segments()) {
    if (old.type == PT_LOAD) CHECK(after.offset_of(old.vaddr) == old.offset);
  }
}

}  // namespace

TEST_CASE("notes in a gap take an entry that the table has to spare", "[layout]") {
  Sample sample;
  sample.header(PT_PHDR, 0x40, 5 * 56, 8);  // without PT_INTERP nobody needs it
  const ElfFile file = open_elf(sample.build(kFirstPage));
  const auto [bytes, room] = with_notes(file, 64);
  CHECK(room.kind == RoomKind::gap);
  CHECK(room.address.value == kFirstPage);  // behind what is only read
  check_notes(file, bytes, room, 64);
  const ElfFile after = open_elf(bytes);
  CHECK(after.segments().size() == file.segments().size());
  CHECK(std::ranges::none_of(after.segments(), [](const Segment& s) { return s.type == PT_PHDR; }));
}

TEST_CASE("notes in a gap take padding behind the table", "[layout]") {
  Sample sample;
  const ElfFile file = open_elf(sample.build(kFirstPage));
  const auto [bytes, room] = with_notes(file, 64);
  CHECK(room.kind == RoomKind::gap);
  check_notes(file, bytes, room, 64);
  CHECK(open_elf(bytes).segments().size() == file.segments().size() + 1);
}

TEST_CASE("notes in a new segment need two entries", "[layout]") {
  Sample sample;
  const ElfFile file = open_elf(sample.build(kFirstPage));
  const auto [bytes, room] = with_notes(file, 0x2000);
  CHECK(room.kind == RoomKind::grown_headers);
  CHECK(!room.joined);
  check_notes(file, bytes, room, 0x2000);
  const ElfFile after = open_elf(bytes);
  CHECK(after.segments().size() == file.segments().size() + 2);
  CHECK(after.load_segment(room.address)->flags == PF_R);
}

TEST_CASE("notes behind moved ones share their entry", "[layout]") {
  // Behind the table: GNU's notes, of which one entry's place is taken, and code's own bytes.
  constexpr std::uint64_t kNotes = 0x40 + 4 * 56;
  Sample sample;
  const Bytes id = gnu_note(sample.elf, 3, 10);
  sample.header(PT_NOTE, kNotes, id.size(), 4);
  sample.elf.section({.name = ".note.gnu.build-id",
                      .type = SHT_NOTE,
                      .flags = SHF_ALLOC,
                      .addr = kNotes,
                      .align = 4,
                      .bytes = id});
  sample.elf.section({.name = ".rodata",
                      .flags = SHF_ALLOC,
                      .addr = kNotes + id.size(),
                      .align = 1,
                      .bytes = Bytes(300, std::byte{7})});
  const ElfFile file = open_elf(sample.build(kNotes + id.size() + 300));
  const auto [bytes, room] = with_notes(file, 0x2000);
  CHECK(room.kind == RoomKind::grown_headers);
  CHECK(room.joined);
  check_notes(file, bytes, room, 0x2000);
  const ElfFile after = open_elf(bytes);
  CHECK(after.segments().size() == file.segments().size() + 1);
  const Segment* notes = note_over(after, room, 0x2000);
  REQUIRE(notes != nullptr);
  CHECK(notes->filesz.value == id.size() + 0x2000);
  const ByteView moved = after.bytes_at(notes->vaddr, Size{id.size()});
  CHECK(Bytes(moved.begin(), moved.end()) == id);
}

TEST_CASE("code takes no gap behind bytes that are only read", "[layout]") {
  Sample sample;
  const ElfFile file = open_elf(sample.build(kFirstPage));
  const auto room = find_room(file, {.size = Size{64}});
  REQUIRE(room);
  CHECK(room->kind == RoomKind::gap);
  CHECK(room->address.value >= kText);
}
