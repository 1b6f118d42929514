// find_room() and place() on files made by hand: what is refused, and why.
#include "catch.hpp"
#include "layout_sample.hpp"
#include "libprobe/rewrite/layout.hpp"

using namespace reprobe;
using namespace reprobe::test;

TEST_CASE("what is refused", "[layout]") {
  Sample sample;
  Bytes bytes = sample.build();
  const auto poke = [&](std::uint32_t header, const char* field, std::uint64_t value) {
    sample.elf.poke(bytes, sample.elf.phdr(header, field), value);
  };
  SECTION("nothing is loaded") {
    for (const std::uint32_t i : {0, 1, 2}) poke(i, "p_type", 4);
    CHECK(refusal(open_elf(bytes)) == "nothing of the file is loaded");
  }
  SECTION("overlapping segments") {
    poke(1, "p_memsz", 0x1800);
    CHECK(refusal(open_elf(bytes)) == "the loaded segments overlap or are out of order");
  }
  SECTION("segments out of order") {
    poke(0, "p_vaddr", 0x9000);
    CHECK(refusal(open_elf(bytes)) == "the loaded segments overlap or are out of order");
  }
  SECTION("a segment that wraps") {
    poke(2, "p_memsz", ~std::uint64_t{0} - 0x1000);
    CHECK(refusal(open_elf(bytes)) == "the segment ends above the address space");
  }
  SECTION("a segment outside the file") {
    poke(1, "p_offset", 0x7000000);
    CHECK(refusal(open_elf(bytes)) == "the segment lies outside the file");
  }
  SECTION("more bytes than memory") {
    poke(1, "p_memsz", 1);
    CHECK(refusal(open_elf(bytes)) == "more bytes in the file than in memory");
  }
  SECTION("address and offset that do not fit each other") {
    poke(1, "p_vaddr", kText + 8);
    CHECK(refusal(open_elf(bytes)) == "address and offset are not congruent");
  }
  SECTION("an alignment that is none") {
    poke(1, "p_align", 0x1800);
    CHECK(refusal(open_elf(bytes)) == "p_align is not a power of two");
  }
  SECTION("out of reach") {
    poke(2, "p_memsz", 0x7ffffff0);
    CHECK(refusal(open_elf(bytes)).starts_with("the new bytes would be out of reach"));
    CHECK(find_room(open_elf(bytes), {.size = Size{64}, .reach = Size{std::uint64_t{1} << 40}}));
  }
  SECTION("the end of user space") {
    poke(2, "p_memsz", (std::uint64_t{1} << 47) - kData);
    const RoomRequest request{.size = Size{kTooLarge}, .reach = Size{std::uint64_t{1} << 50}};
    CHECK(refusal(open_elf(bytes), request) == "no address is left above the loaded segments");
  }
  SECTION("a section over the headers") {
    sample.elf.poke(bytes, sample.elf.shdr(2, "sh_offset"), 60);
    CHECK(refusal(open_elf(bytes)) == "the section lies over the headers of the file");
    sample.elf.poke(bytes, sample.elf.shdr(2, "sh_offset"), 64 + 3 * 56 - 1);
    CHECK(refusal(open_elf(bytes)) == "the section lies over the headers of the file");
  }
  SECTION("a debug file") {
    sample.elf.poke(bytes, sample.elf.shdr(1, "sh_type"), SHT_NOBITS);
    CHECK(refusal(open_elf(bytes)) == "a separate debug file: its code is elsewhere");
  }
  SECTION("neither program nor library") {
    sample.elf.poke(bytes, sample.elf.ehdr("e_type"), ET_REL);
    CHECK(refusal(open_elf(bytes)) == "neither a program nor a library");
  }
  SECTION("a stride that the kernel does not take") {
    Sample wide({.is64 = true, .order = std::endian::little, .extra_stride = 8});
    CHECK(refusal(open_elf(wide.build()))
              .starts_with("program headers of a size that no kernel takes"));
  }
}

TEST_CASE("a file without section headers is not given room", "[layout]") {
  Sample sample({.is64 = true, .order = std::endian::little, .section_headers = false});
  const auto room = find_room(open_elf(sample.build()), {.size = Size{64}});
  REQUIRE(!room);
  CHECK(room.error().code == ErrorCode::unreadable);
}

TEST_CASE("as many program headers as there can be", "[layout]") {
  for (const std::size_t count : {0xfffdU, 0xfffeU}) {
    Sample sample;
    for (std::size_t i = 3; i < count; ++i) sample.elf.segment({.type = 0x60000002});
    const ElfFile file = open_elf(sample.build());
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
    const auto room = find_room(open_elf(sample.build()), {.size = Size{2 * kTooLarge}});
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
    const ElfFile file = open_elf(sample.build(0x900));
    CHECK(find_room(file, {.size = Size{64}}));
    const auto room = find_room(file, {.size = Size{kTooLarge}});
    CHECK(room.has_value() == (tag == 1));  // DT_NEEDED: a library
  }
}

TEST_CASE("contents that do not fit their room are a fault of the caller", "[layout]") {
  const ElfFile file = open_elf(Sample().build());
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
