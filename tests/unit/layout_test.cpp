// find_room() and place() on files made by hand: where the room lies, what the headers of the
// result say, and what is refused. That such files run is shown by tests/live/layout_test.py.
#include "libprobe/rewrite/layout.hpp"

#include <LIEF/ELF.hpp>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/rewrite/layout_loads.hpp"

using namespace reprobe;
using reprobe::test::bytes_of;
using reprobe::test::ElfBuilder;

namespace {

constexpr std::uint64_t kText = 0x1000, kData = 0x2000, kBss = 0x500;

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

ElfFile open(Bytes bytes) {
  auto file = ElfFile::open(memory_source(std::move(bytes)));
  REQUIRE(file);
  return std::move(*file);
}

std::string refusal(const ElfFile& file, RoomRequest request = {.size = Size{64}}) {
  const auto room = find_room(file, request);
  REQUIRE(!room);
  CHECK(room.error().code == ErrorCode::refused);
  return room.error().message;
}

constexpr std::uint64_t kTooLarge = 0x1000;  // for the padding of a page

Bytes contents(std::uint64_t size) {
  return Bytes(static_cast<std::size_t>(size), std::byte{0xcc});
}

// The file with room for `size` bytes, and the room.
std::pair<Bytes, Room> with_room(const ElfFile& file, std::uint64_t size,
                                 std::optional<Size> eh_frame_hdr = {}) {
  const auto room = find_room(file, {.size = Size{size}});
  INFO((room ? "" : room.error().message));
  REQUIRE(room);
  Plan plan;
  auto table = SectionTable::of(file);
  REQUIRE(table);
  Section section;
  section.name = kRoomSection;
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
void check_result(const ElfFile& before, const Bytes& bytes, const Room& room, std::uint64_t size) {
  const ElfFile after = open(bytes);
  REQUIRE(load_map(after));
  CHECK(after.offset_of(room.address) == room.offset);
  CHECK(after.bytes_at(room.address, Size{size}).size() == size);
  CHECK(after.load_segment(room.address)->flags == (PF_R | PF_X));
  const Section* section = after.section(kRoomSection);
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
Bytes gnu_note(const ElfBuilder& elf, std::uint32_t type, std::size_t words) {
  return elf.note(std::string_view("GNU", 4), type, Bytes(words * 4, std::byte{7}));
}

}  // namespace

TEST_CASE("room in the padding behind the code", "[layout]") {
  for (const bool is64 : {true, false}) {
    for (const auto order : {std::endian::little, std::endian::big}) {
      Sample sample({.is64 = is64, .order = order});
      const ElfFile file = open(sample.build());
      const auto [bytes, room] = with_room(file, 100);
      CHECK(room.kind == RoomKind::gap);
      CHECK(room.address == VirtAddr{kText + 16});
      CHECK(room.offset == FileOffset{sample.elf.offset(1) + 16});
      check_result(file, bytes, room, 100);
      const ElfFile after = open(bytes);
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
    const auto room = find_room(open(std::move(bytes)), {.size = Size{size}});
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
        const ElfFile file = open(sample.build(is64 ? 64 + 3 * 56 : 52 + 3 * 32));
        const auto [bytes, room] = with_room(file, kTooLarge);
        CHECK(room.kind == RoomKind::moved_headers);
        check_result(file, bytes, room, kTooLarge);
        const ElfFile after = open(bytes);
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
    const ElfFile file = open(sample.build(0x600));
    const std::string build_id = file.build_id();
    REQUIRE(build_id.size() == 40);
    const auto [bytes, room] = with_room(file, kTooLarge);
    CHECK(room.kind == RoomKind::grown_headers);
    check_result(file, bytes, room, kTooLarge);
    const ElfFile after = open(bytes);
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
    const auto room = find_room(open(std::move(bytes)), {.size = Size{kTooLarge}});
    REQUIRE(room);
    CHECK(room->kind == RoomKind::moved_headers);
  }
  SECTION("a named note stays") {
    sample.header(PT_NOTE, kBegin + 28, notes, 4);
    sample.elf.symbol({.name = "build_tag", .value = kBegin + 28, .size = 4, .shndx = 2});
    const auto room = find_room(open(sample.build(0x600)), {.size = Size{kTooLarge}});
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
    const ElfFile file = open(bytes);
    const auto [output, room] = with_room(file, kTooLarge);
    CHECK(room.kind == RoomKind::spare_header);
    check_result(file, output, room, kTooLarge);
    const ElfFile after = open(output);
    CHECK(after.segments().size() == file.segments().size());
    CHECK(after.segments()[0].filesz == Size{first.size() + second.size()});
    CHECK(after.segments()[0].align == Size{4});
    CHECK(after.build_id() == file.build_id());
    // Without PT_GNU_PROPERTY nothing but the PT_NOTE aligned to 8 says what it says.
    sample.elf.poke(bytes, sample.elf.phdr(2, "p_type"), 0x60000001);
    const auto other = find_room(open(bytes), {.size = Size{kTooLarge}});
    REQUIRE(other);
    CHECK(other->kind != RoomKind::spare_header);
  }
  SECTION("PT_PHDR without PT_INTERP") {
    Sample sample;
    sample.header(PT_PHDR, 64, 4 * 56, 8);
    const ElfFile file = open(sample.build());
    const auto [output, room] = with_room(file, kTooLarge);
    CHECK(room.kind == RoomKind::spare_header);
    check_result(file, output, room, kTooLarge);
  }
}

TEST_CASE("PT_GNU_EH_FRAME points into the room", "[layout]") {
  Sample sample;
  sample.header(PT_GNU_EH_FRAME, 0x300, 12, 4);
  const ElfFile file = open(sample.build());
  const auto [output, room] = with_room(file, 64, Size{24});
  const ElfFile after = open(output);
  CHECK(after.segments()[0].vaddr == room.address);
  CHECK(after.segments()[0].offset == room.offset);
  CHECK(after.segments()[0].memsz == Size{24});

  const ElfFile without = open(Sample().build());
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
  const ElfFile file = open(sample.build(64 + 3 * 56));
  const auto [output, room] = with_room(file, kTooLarge);
  std::vector<std::uint8_t> raw;
  for (const std::byte b : output) raw.push_back(std::to_integer<std::uint8_t>(b));
  const auto binary = LIEF::ELF::Parser::parse(raw, "room");
  REQUIRE(binary);
  CHECK(binary->header().program_headers_offset() == room.segment.value);
  const auto& section = binary->get_section(std::string(kRoomSection));
  CHECK(section.virtual_address() == room.address.value);
  CHECK(section.offset() == room.offset.value);
  const auto& segment = binary->segment_from_virtual_address(room.address.value);
  CHECK(segment.file_offset() == room.segment.value);
  CHECK(segment.virtual_size() == segment.physical_size());
}

TEST_CASE("what is refused", "[layout]") {
  Sample sample;
  Bytes bytes = sample.build();
  const auto poke = [&](std::uint32_t header, const char* field, std::uint64_t value) {
    sample.elf.poke(bytes, sample.elf.phdr(header, field), value);
  };
  SECTION("nothing is loaded") {
    for (const std::uint32_t i : {0, 1, 2}) poke(i, "p_type", 4);
    CHECK(refusal(open(bytes)) == "nothing of the file is loaded");
  }
  SECTION("overlapping segments") {
    poke(1, "p_memsz", 0x1800);
    CHECK(refusal(open(bytes)) == "the loaded segments overlap or are out of order");
  }
  SECTION("segments out of order") {
    poke(0, "p_vaddr", 0x9000);
    CHECK(refusal(open(bytes)) == "the loaded segments overlap or are out of order");
  }
  SECTION("a segment that wraps") {
    poke(2, "p_memsz", ~std::uint64_t{0} - 0x1000);
    CHECK(refusal(open(bytes)) == "the segment ends above the address space");
  }
  SECTION("a segment outside the file") {
    poke(1, "p_offset", 0x7000000);
    CHECK(refusal(open(bytes)) == "the segment lies outside the file");
  }
  SECTION("more bytes than memory") {
    poke(1, "p_memsz", 1);
    CHECK(refusal(open(bytes)) == "more bytes in the file than in memory");
  }
  SECTION("address and offset that do not fit each other") {
    poke(1, "p_vaddr", kText + 8);
    CHECK(refusal(open(bytes)) == "address and offset are not congruent");
  }
  SECTION("an alignment that is none") {
    poke(1, "p_align", 0x1800);
    CHECK(refusal(open(bytes)) == "p_align is not a power of two");
  }
  SECTION("out of reach") {
    poke(2, "p_memsz", 0x7ffffff0);
    CHECK(refusal(open(bytes)).starts_with("the new bytes would be out of reach"));
    CHECK(find_room(open(bytes), {.size = Size{64}, .reach = Size{std::uint64_t{1} << 40}}));
  }
  SECTION("the end of user space") {
    poke(2, "p_memsz", (std::uint64_t{1} << 47) - kData);
    const RoomRequest request{.size = Size{kTooLarge}, .reach = Size{std::uint64_t{1} << 50}};
    CHECK(refusal(open(bytes), request) == "no address is left above the loaded segments");
  }
  SECTION("a section over the headers") {
    sample.elf.poke(bytes, sample.elf.shdr(2, "sh_offset"), 60);
    CHECK(refusal(open(bytes)) == "the section lies over the headers of the file");
    sample.elf.poke(bytes, sample.elf.shdr(2, "sh_offset"), 64 + 3 * 56 - 1);
    CHECK(refusal(open(bytes)) == "the section lies over the headers of the file");
  }
  SECTION("a debug file") {
    sample.elf.poke(bytes, sample.elf.shdr(1, "sh_type"), SHT_NOBITS);
    CHECK(refusal(open(bytes)) == "a separate debug file: its code is elsewhere");
  }
  SECTION("neither program nor library") {
    sample.elf.poke(bytes, sample.elf.ehdr("e_type"), ET_REL);
    CHECK(refusal(open(bytes)) == "neither a program nor a library");
  }
  SECTION("a stride that the kernel does not take") {
    Sample wide({.is64 = true, .order = std::endian::little, .extra_stride = 8});
    CHECK(
        refusal(open(wide.build())).starts_with("program headers of a size that no kernel takes"));
  }
}

TEST_CASE("a file without section headers is not given room", "[layout]") {
  Sample sample({.is64 = true, .order = std::endian::little, .section_headers = false});
  const auto room = find_room(open(sample.build()), {.size = Size{64}});
  REQUIRE(!room);
  CHECK(room.error().code == ErrorCode::unreadable);
}

TEST_CASE("as many program headers as there can be", "[layout]") {
  for (const std::size_t count : {0xfffdU, 0xfffeU}) {
    Sample sample;
    for (std::size_t i = 3; i < count; ++i) sample.elf.segment({.type = 0x60000002});
    const ElfFile file = open(sample.build());
    REQUIRE(file.header().phnum == count);
    const auto room = find_room(file, {.size = Size{kTooLarge}});
    CHECK(room.has_value() == (count < 0xfffe));
    if (!room) CHECK(room.error().message == "too many program headers to add one");
  }
}

TEST_CASE("a program has one page of program headers for older kernels", "[layout]") {
  for (const std::size_t count : {72U, 73U}) {
    Sample sample({.is64 = true, .order = std::endian::little, .type = ET_EXEC});
    for (std::size_t i = 3; i < count; ++i) sample.elf.segment({.type = 0x60000002});
    const auto room = find_room(open(sample.build()), {.size = Size{2 * kTooLarge}});
    CHECK(room.has_value() == (count == 72));
  }
}

TEST_CASE("a dynamic linker keeps its segments", "[layout]") {
  // DT_SONAME, DT_NULL, and an entry.
  for (const std::uint64_t tag : {14, 1}) {
    Sample sample({.is64 = true, .order = std::endian::little, .type = ET_DYN, .entry = kText});
    Bytes dynamic = sample.elf.number(tag, 8);
    dynamic.resize(32);
    sample.elf.section({.name = ".dynamic",
                        .type = SHT_DYNAMIC,
                        .flags = SHF_ALLOC,
                        .addr = 0x800,
                        .bytes = dynamic});
    sample.header(PT_DYNAMIC, 0x800, 32, 8);
    const ElfFile file = open(sample.build(0x900));
    CHECK(find_room(file, {.size = Size{64}}));
    const auto room = find_room(file, {.size = Size{kTooLarge}});
    CHECK(room.has_value() == (tag == 1));  // DT_NEEDED: a library
  }
}

TEST_CASE("contents that do not fit their room are a fault of the caller", "[layout]") {
  const ElfFile file = open(Sample().build());
  const auto room = find_room(file, {.size = Size{64}});
  REQUIRE(room);
  const auto code = [&](RoomContents wanted) {
    Plan plan;
    auto table = SectionTable::of(file);
    REQUIRE(table);
    const auto done = place(plan, *table, file, *room, std::move(wanted));
    REQUIRE(!done);
    CHECK(plan.empty());
    return done.error().code;
  };
  CHECK(code({.bytes = contents(65), .sections = {}, .eh_frame_hdr = {}}) == ErrorCode::internal);
  CHECK(code({.bytes = {}, .sections = {}, .eh_frame_hdr = {}}) == ErrorCode::internal);
  Section section;
  section.addr = VirtAddr{room->address.value + 60};
  section.size = Size{5};
  CHECK(code({.bytes = contents(64), .sections = {&section, 1}, .eh_frame_hdr = {}}) ==
        ErrorCode::internal);
}
