// Finding things by address: sections, segments, file offsets, code, the build-id.
#include <random>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/elf/address_map.hpp"
#include "libprobe/elf/file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kMax = ~std::uint64_t{0};

ElfFile open_good(const Bytes& bytes) {
  auto file = ElfFile::open(memory_source(bytes));
  if (!file) FAIL(file.error().where << ": " << file.error().message);
  return *std::move(file);
}

}  // namespace

TEST_CASE("An address map gives what a search in order gives") {
  std::mt19937 random(20240607);  // fixed: a failure can be repeated
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<AddressRange> ranges;
    const std::uint32_t count = below(12);
    // Half of the rounds stand at the top of the address space.
    const std::uint64_t origin = round % 2 == 0 ? 0 : kMax - 40;
    for (std::uint32_t i = 0; i < count; ++i)
      ranges.push_back({{origin + below(40)}, {below(5) == 0 ? kMax : below(12)}, 100 + i});
    const AddressMap map(ranges);
    for (std::uint64_t step = 0; step <= 60; ++step) {
      const std::uint64_t address = origin + step;  // wraps to the bottom in odd rounds
      std::optional<std::uint32_t> expected;
      for (auto r = ranges.rbegin(); r != ranges.rend(); ++r)
        if (in_range(address, r->start.value, r->size.value)) expected = r->id;
      CAPTURE(round, address);
      REQUIRE(map.find({address}) == expected);
    }
  }
  CHECK(!AddressMap().find({0}));
}

TEST_CASE("Where sections overlap the executable one wins, then the smaller") {
  ElfBuilder elf;
  const auto data =
      elf.section({.name = ".data", .flags = SHF_ALLOC, .addr = 0x1000, .bytes = Bytes(0x10)});
  const auto text = elf.section(
      {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = 0x1008, .bytes = Bytes(0x20)});
  const auto cold = elf.section({.name = ".text.cold",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1010,
                                 .bytes = Bytes(0x8)});
  elf.section({.name = ".debug", .addr = 0x1000, .bytes = Bytes(0x100)});
  elf.section({.name = ".tbss",
               .type = SHT_NOBITS,
               .flags = SHF_ALLOC | SHF_TLS,
               .addr = 0x2000,
               .size = 0x10});
  const auto bss = elf.section(
      {.name = ".bss", .type = SHT_NOBITS, .flags = SHF_ALLOC, .addr = 0x2000, .size = 0x20});
  const auto top = elf.section(
      {.name = ".top", .type = SHT_NOBITS, .flags = SHF_ALLOC, .addr = kMax - 3, .size = 0x1000});
  const Bytes bytes = elf.build();
  const ElfFile file = open_good(bytes);
  const auto at = [&](std::uint64_t address) -> std::uint32_t {
    const Section* section = file.section_containing({address});
    return section == nullptr ? 0 : section->index;
  };
  CHECK(at(0xfff) == 0);
  CHECK(at(0x1000) == data);
  CHECK(at(0x1008) == text);
  CHECK(at(0x1010) == cold);
  CHECK(at(0x1017) == cold);
  CHECK(at(0x1018) == text);
  CHECK(at(0x1027) == text);
  CHECK(at(0x1028) == 0);
  CHECK(at(0x2000) == bss);
  CHECK(at(kMax - 4) == 0);
  CHECK(at(kMax) == top);
  CHECK(at(0) == 0);
}

TEST_CASE("In ET_REL an address alone finds nothing, a section's offset does") {
  ElfBuilder elf({.type = ET_REL});
  const auto one = elf.section(
      {.name = ".text.one", .flags = SHF_ALLOC | SHF_EXECINSTR, .bytes = bytes_of({1, 2, 3})});
  const auto two = elf.section(
      {.name = ".text.two", .flags = SHF_ALLOC | SHF_EXECINSTR, .bytes = bytes_of({4, 5, 6})});
  elf.load(PF_R | PF_X, one);  // even where there are segments
  const Bytes bytes = elf.build();
  const ElfFile file = open_good(bytes);
  CHECK(file.section_containing({1}) == nullptr);
  CHECK(!file.offset_of({1}));
  CHECK(file.bytes_at({1}, {2}).empty());
  const ByteView code = file.bytes_at({1}, {16}, two);
  REQUIRE(code.size() == 2);
  CHECK(load_uint(code, 0, 1, std::endian::little) == 5);
  CHECK(file.bytes_at({0}, {1}, one).size() == 1);
  CHECK(file.bytes_at({3}, {1}, one).empty());
  CHECK(file.bytes_at({kMax}, {1}, one).empty());
  CHECK(file.bytes_at({0}, {1}, 99).empty());
}

TEST_CASE("The first PT_LOAD that holds an address decides its offset") {
  ElfBuilder elf({.section_headers = false});
  elf.segment({.type = PT_NOTE, .offset = 0x10, .vaddr = 0x1000, .filesz = 4, .memsz = 4});
  elf.segment({.offset = 0x140, .vaddr = 0x1000, .filesz = 0x10, .memsz = 0x30});
  elf.segment({.offset = 0x180, .vaddr = 0x1008, .filesz = 0x40, .memsz = 0x40});
  elf.segment({.offset = kMax - 1, .vaddr = 0x5000, .filesz = 0x40, .memsz = 0x40});
  Bytes bytes = elf.build();
  bytes.resize(0x1b0);
  const ElfFile file = open_good(bytes);

  CHECK(file.load_segment({0xfff}) == nullptr);
  CHECK(file.load_segment({0x1000})->index == 1);
  CHECK(file.load_segment({0x1020})->index == 1);
  CHECK(file.load_segment({0x1030})->index == 2);
  CHECK(file.offset_of({0x1000})->value == 0x140);
  CHECK(file.offset_of({0x100f})->value == 0x14f);
  // Behind the first segment's file bytes its .bss begins, but the second has bytes there.
  CHECK(file.offset_of({0x1010})->value == 0x188);
  CHECK(!file.offset_of({0x1048}));
  CHECK(!file.offset_of({0x5002}));  // the offset would pass 2^64
  CHECK(file.offset_of({0x5001})->value == kMax);

  CHECK(file.bytes_at({0x1000}, {4}).size() == 4);
  CHECK(file.bytes_at({0x100c}, {16}).size() == 4);     // the segment's file bytes end
  CHECK(file.bytes_at({0x1030}, {0x100}).size() == 8);  // the file ends
  CHECK(file.bytes_at({0x5000}, {1}).empty());
}

TEST_CASE("A debug file has no bytes for what is NOBITS, whatever its program headers say") {
  // eu-strip keeps p_offset and p_filesz of the program.
  ElfBuilder elf;
  elf.section({.name = ".text",
               .type = SHT_NOBITS,
               .flags = SHF_ALLOC | SHF_EXECINSTR,
               .addr = 0x1000,
               .size = 0x100});
  elf.section({.name = ".data",
               .type = SHT_NOBITS,
               .flags = SHF_ALLOC | SHF_WRITE,
               .addr = 0x1200,
               .size = 0x100});
  elf.section({.name = ".note.kept",
               .type = SHT_NOTE,
               .flags = SHF_ALLOC,
               .addr = 0x1300,
               .bytes = Bytes(4)});
  elf.segment({.offset = 0, .vaddr = 0x1000, .filesz = 0x400, .memsz = 0x400});
  elf.segment({.offset = 0x9990000, .vaddr = 0x9000, .filesz = 0x400, .memsz = 0x400});
  const Bytes bytes = elf.build();
  const ElfFile file = open_good(bytes);
  CHECK(file.problems().empty());
  CHECK(!file.offset_of({0x1010}));
  CHECK(!file.offset_of({0x1210}));
  CHECK(!file.offset_of({0x1110}));  // between sections: the header may be the program's
  CHECK(file.offset_of({0x1300}));
  CHECK(file.bytes_at({0x1010}, {4}).empty());
  CHECK(file.load_segment({0x1010}) != nullptr);
}

TEST_CASE("The build-id is found in its section and, without one, in PT_NOTE") {
  const bool is64 = GENERATE(true, false);
  const auto order = GENERATE(std::endian::little, std::endian::big);
  const bool headers = GENERATE(true, false);
  ElfBuilder elf({.is64 = is64, .order = order, .section_headers = headers});
  Bytes notes = elf.note(std::string_view("GNU", 4), 1, Bytes(16));  // NT_GNU_ABI_TAG
  const Bytes other = elf.note(std::string_view("Go\0", 4), 3, Bytes(5));
  const Bytes id = elf.note(std::string_view("GNU", 4), 3, bytes_of({0x01, 0xab, 0xff}));
  notes.insert(notes.end(), other.begin(), other.end());
  notes.insert(notes.end(), id.begin(), id.end());
  const auto section = elf.section({.name = ".note.gnu.build-id",
                                    .type = SHT_NOTE,
                                    .flags = SHF_ALLOC,
                                    .addr = 0x1000,
                                    .align = 4,
                                    .bytes = notes});
  elf.load(PF_R, section, section, PT_NOTE);
  const Bytes bytes = elf.build();
  const ElfFile file = open_good(bytes);
  CHECK(file.build_id() == "01abff");
  const auto range = file.build_id_range();
  REQUIRE(range);
  CHECK(range->first.value == elf.offset(section) + notes.size() - 4);
  CHECK(range->second.value == 3);
}

TEST_CASE("Notes that are not a build-id, or are cut short, give none") {
  ElfBuilder elf;
  const auto id_of = [](Bytes notes) {
    ElfBuilder builder;
    builder.section({.name = ".note.gnu.build-id", .type = SHT_NOTE, .bytes = std::move(notes)});
    const Bytes bytes = builder.build();
    return open_good(bytes).build_id();
  };
  CHECK(id_of({}) == "");
  CHECK(id_of(Bytes(11)) == "");
  CHECK(id_of(elf.note(std::string_view("GNU", 4), 3, {})) == "");
  CHECK(id_of(elf.note(std::string_view("XYZ", 4), 3, Bytes(4))) == "");
  Bytes cut = elf.note(std::string_view("GNU", 4), 3, Bytes(8));
  cut.pop_back();
  CHECK(id_of(cut) == "");
  Bytes endless = elf.note(std::string_view("GNU", 4), 3, Bytes(8));
  put(endless, {4, 4}, std::endian::little, 0xffffffff);
  CHECK(id_of(endless) == "");
  put(endless, {0, 4}, std::endian::little, 0xffffffff);
  CHECK(id_of(endless) == "");
  CHECK(id_of(elf.note(std::string_view("GNU", 4), 3, Bytes(1025))) == "");
}

TEST_CASE("A note segment of alignment 8 is read with padding to 8") {
  ElfBuilder elf({.section_headers = false});
  Bytes notes = elf.note(std::string_view("GNU", 4), 5, Bytes(4), 8);  // a GNU property note
  const Bytes id = elf.note(std::string_view("GNU", 4), 3, bytes_of({0x11, 0x22}), 8);
  notes.insert(notes.end(), id.begin(), id.end());
  const auto section = elf.section({.type = SHT_NOTE, .align = 8, .bytes = notes});
  elf.segment({.type = PT_NOTE, .offset = 64 + 56, .filesz = notes.size(), .align = 8});
  const Bytes bytes = elf.build();
  REQUIRE(elf.offset(section) == 64 + 56);
  CHECK(open_good(bytes).build_id() == "1122");
}

TEST_CASE("A debug file's PT_NOTE is the program's and gives no build-id") {
  ElfBuilder elf;
  elf.section({.name = ".text",
               .type = SHT_NOBITS,
               .flags = SHF_ALLOC | SHF_EXECINSTR,
               .addr = 0x1000,
               .size = 0x100});
  const auto other =
      elf.section({.name = ".other", .bytes = elf.note(std::string_view("GNU", 4), 3, Bytes(8))});
  elf.load(PF_R, other, other, PT_NOTE);
  const Bytes bytes = elf.build();
  CHECK(open_good(bytes).build_id() == "");
}
