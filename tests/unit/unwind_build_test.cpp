// Tables of stubs: bytes assembled by hand from LSB Core 5.0, 10.6, and what may not be built.
#include "libprobe/code/eh_frame.hpp"
#include "unwind_file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

// push %rbp; mov %rsp,%rbp; ...
TestFunction with_frame_pointer(std::uint64_t start) {
  return {start, 0x20, hex("41 0e10 8602 43 0d06")};
}

// A sled, the displaced push and mov, and the way back.
Stub stub_of(std::uint64_t function) {
  return stub_at(kStubs, {{11, function}, {1, function}, {3, function + 1}, {5, function + 4}});
}

std::string refusal(const Result<UnwindTables>& tables) {
  return tables ? "" : tables.error().message;
}

}  // namespace

TEST_CASE("unwind: the tables of a stub, byte by byte") {
  UnwindFile elf;
  elf.function(with_frame_pointer(kText));
  const ElfFile file = opened(elf.build());
  const auto tables = built(file, {stub_of(kText)});
  REQUIRE(tables);
  CHECK(tables->eh_frame == hex("14000000 00000000 01 7a5200 01 78 10 01 1b 0c0708 9001 0000"
                                "18000000 1c000000 e0efffff 14000000 00"
                                "4c 0e10 8602 43 0d06 000000"
                                "00000000"));
  CHECK(tables->eh_frame_hdr == hex("01 1b 03 3b fc7fffff 02000000"
                                    "0060ffff 1880ffff"
                                    "00e0ffff 18f0ffff"));
  CHECK(tables->debug_frame == hex("14000000 ffffffff 01 00 01 78 10 0c0708 9001 000000000000"
                                   "1c000000 00000000 0090000000000000 1400000000000000"
                                   "4c 0e10 8602 43 0d06"));
  CHECK_FALSE(tables->table_edit);
}

TEST_CASE("unwind: behind what .debug_frame holds already, CIE pointers count from its start") {
  UnwindFile elf;
  elf.function(with_frame_pointer(kText));
  const ElfFile file = opened(elf.build());
  const auto tables = built(file, {stub_of(kText)}, kMostRebuilt,
                            {VirtAddr{kNewFrame}, VirtAddr{kNewHeader}, 0x128});
  REQUIRE(tables);
  CHECK(get(tables->debug_frame, {28, 4}, std::endian::little) == 0x128);
}

TEST_CASE("unwind: the rows follow the stack pointer") {
  UnwindFile elf;
  elf.function(with_frame_pointer(kText));
  const ElfFile file = opened(elf.build());
  // Before the push rsp counts and is 8 or 128 lower; behind the mov rbp counts, the same in both.
  const auto tables = built(
      file,
      {stub_at(kStubs, {{1, kText}, {1, kText, 8}, {1, kText + 1, 128}, {1, kText + 4, 128}})});
  REQUIRE(tables);
  const Bytes program(tables->eh_frame.begin() + 24 + 17, tables->eh_frame.end() - 4);
  CHECK(program == hex("41 0e10 41 0e9001 8602 41 0c0610 0000"));
}

TEST_CASE("unwind: in every class and byte order the stub is found, with the function's rows") {
  const bool is64 = GENERATE(true, false);
  const auto order = GENERATE(std::endian::little, std::endian::big);
  CAPTURE(is64, order == std::endian::big);
  UnwindFile elf({.is64 = is64, .order = order, .machine = EM_X86_64});
  elf.function(with_frame_pointer(kText));
  elf.function(with_frame_pointer(kText + 0x40));
  const ElfFile file = opened(elf.build());
  const auto tables = built(file, {stub_of(kText + 0x40)});
  REQUIRE(tables);
  const ElfFile with = opened(elf.build(*tables));
  const auto table = UnwindTable::open(with);
  REQUIRE(table);
  for (const std::uint64_t start : {kText, kText + 0x40, kStubs}) {
    const auto fde = table->find(VirtAddr{start + 3});
    REQUIRE(fde);
    CHECK(fde->start.value == start);
    CHECK(fde->size.value == (start == kStubs ? 20 : 0x20));
  }
  const auto index = read_unwind_index(with);
  REQUIRE(index);
  REQUIRE(index->entries.size() == 3);
  std::optional<CfiCie> cie;
  const auto fde = read_fde(with, index->entries[2].fde, cie);
  REQUIRE(fde);
  const auto rows = read_rows(with, *cie, *fde);
  REQUIRE(rows);
  REQUIRE(rows->rows.size() == 3);
  CHECK(rows->at(VirtAddr{kStubs + 11}).cfa == CfaRule{7, 8, false, {}});
  CHECK(rows->at(VirtAddr{kStubs + 12}).cfa == CfaRule{7, 16, false, {}});
  CHECK(rows->at(VirtAddr{kStubs + 15}).cfa == CfaRule{6, 16, false, {}});
}

TEST_CASE("unwind: a signal frame stays one; functions of one kind share a CIE") {
  UnwindFile elf;
  elf.function({kText, 0x20, {}, "zRS"});
  elf.function({kText + 0x20, 0x20, {}});
  elf.function({kText + 0x40, 0x20, {}, "zLR", hex("00000000")});
  const ElfFile file = opened(elf.build());
  const auto tables =
      built(file, {stub_at(kStubs, {{16, kText}}), stub_at(kStubs + 16, {{16, kText + 0x20}}),
                   stub_at(kStubs + 32, {{16, kText + 0x40}})});
  REQUIRE(tables);
  const auto text = as_text(tables->eh_frame);
  CHECK(text.find("zRS") != std::string_view::npos);
  // Two CIEs of 24 bytes, three FDEs of 20, the end.
  CHECK(tables->eh_frame.size() == 2 * 24 + 3 * 20 + 4);
  CHECK(as_text(tables->debug_frame).find("zS") != std::string_view::npos);
}

TEST_CASE("unwind: rows that cannot move") {
  UnwindFile elf;
  // .plt: the CFA depends on the program counter.
  elf.function({kText, 0x20, hex("0f 0b 7708 8000 3f1a 3b2a 3324 22")});
  elf.function({kText + 0x20, 0x20, hex("0f 02 7708")});     // CFA = rsp + 8, as an expression
  elf.function({kText + 0x40, 0x20, hex("10 03 02 7708")});  // rbx stands at rsp + 8
  elf.function({kText + 0x60, 0x20, hex("09 03 07")});       // rbx is in rsp
  elf.function({kText + 0x80, 0x20, hex("0f 02 7610")});     // CFA = rbp + 16
  elf.function({kText + 0xa0, 0x20, hex("17 00")});          // unknown
  const ElfFile file = opened(elf.build());
  const auto ask = [&](std::uint64_t original, std::int64_t adjust) {
    const Stub stub = stub_at(kStubs, {{16, original, adjust}});
    auto writer = UnwindWriter::open(file);
    REQUIRE(writer);
    const auto tables = writer->build(std::span(&stub, 1), kPlaces);
    // The planner asks before there is a place.
    const auto checked = writer->check(stub.pieces);
    CHECK(checked.has_value() == tables.has_value());
    if (!tables) {
      CHECK(tables.error().code == ErrorCode::refused);
      CHECK(checked.error().message == tables.error().message);
    }
    return refusal(tables);
  };
  CHECK(ask(kText, 0).find("program counter") != std::string::npos);
  for (const std::uint64_t function : {kText + 0x20, kText + 0x40, kText + 0x60}) {
    CAPTURE(function);
    CHECK(ask(function, 0).empty());
    CHECK(ask(function, 8).find("stack pointer") != std::string::npos);
  }
  CHECK(ask(kText + 0x80, 8).empty());
  CHECK(ask(kText + 0xa0, 0).find("unknown instruction") != std::string::npos);
}

TEST_CASE("unwind: stubs that contradict the file") {
  UnwindFile elf;
  elf.function(with_frame_pointer(kText));
  elf.function(with_frame_pointer(kText + 0x20));
  elf.function({kStubs + 0x100, 0x20, {}});
  const ElfFile file = opened(elf.build());
  CHECK(refusal(built(file, {stub_at(kStubs, {{8, kText}, {8, kText + 0x20}})})) != "");
  CHECK(refusal(built(file, {stub_at(kStubs + 0xf8, {{8, kText}})})) == "");
  CHECK(refusal(built(file, {stub_at(kStubs + 0xf8, {{9, kText}})})) != "");
  CHECK(refusal(built(file, {stub_at(kStubs + 0x11f, {{8, kText}})})) != "");
  CHECK(refusal(built(file, {stub_at(kStubs + 0x120, {{8, kText}})})) == "");
  const Stub first = stub_at(kStubs, {{8, kText}});
  CHECK(refusal(built(file, {first, stub_at(kStubs + 8, {{8, kText}})})) == "");
  CHECK(refusal(built(file, {stub_at(kStubs + 8, {{8, kText}}), first})) == "");
  CHECK(refusal(built(file, {first, stub_at(kStubs + 7, {{8, kText}})})) != "");
  Stub torn = stub_at(kStubs, {{8, kText}, {8, kText}});
  torn.pieces[1].start.value += 1;
  CHECK(refusal(built(file, {torn})) != "");
  // Over 2 GiB away from its tables.
  CHECK(refusal(built(file, {stub_at(0x100000000, {{8, kText}})})) != "");
}

TEST_CASE("unwind: code without unwind information stays without") {
  UnwindFile elf;
  elf.function(with_frame_pointer(kText));
  const ElfFile file = opened(elf.build());
  for (const std::uint64_t original : {kText - 1, kText + 0x20, kText + 0x100}) {
    CAPTURE(original);
    const auto tables = built(file, {stub_at(kStubs, {{8, original}})});
    REQUIRE(tables);
    CHECK(tables->eh_frame.empty());
    CHECK(tables->eh_frame_hdr.empty());
    CHECK(tables->debug_frame.empty());
  }
  CHECK(built(file, {}).value().eh_frame.empty());
  const ElfFile bare = opened(ElfBuilder().build());
  auto writer = UnwindWriter::open(bare);
  REQUIRE(writer);
  CHECK_FALSE(writer->has_tables());
  CHECK_FALSE(writer->needs_program_header());
}

TEST_CASE("unwind: without PT_GNU_EH_FRAME") {
  UnwindFile elf;
  elf.function(with_frame_pointer(kText));
  SECTION("a static program registers .eh_frame; the table holds what that does not find") {
    const ElfFile file = opened(elf.build({}, false));
    auto writer = UnwindWriter::open(file);
    REQUIRE(writer);
    CHECK(writer->needs_program_header());
    const auto tables = built(file, {stub_of(kText)});
    REQUIRE(tables);
    CHECK(tables->eh_frame_hdr == hex("01 1b 03 3b fc7fffff 01000000 00e0ffff 18f0ffff"));
    CHECK_FALSE(tables->debug_frame.empty());
  }
  SECTION("a dynamic program unwinds nothing: debuggers alone are served") {
    elf.dynamic = true;
    const ElfFile file = opened(elf.build({}, false));
    auto writer = UnwindWriter::open(file);
    REQUIRE(writer);
    CHECK_FALSE(writer->needs_program_header());
    const auto tables = built(file, {stub_of(kText)});
    REQUIRE(tables);
    CHECK(tables->eh_frame.empty());
    CHECK(tables->eh_frame_hdr.empty());
    CHECK_FALSE(tables->debug_frame.empty());
  }
  SECTION("a header without a table: libgcc walks .eh_frame, the new table holds all") {
    const ElfFile file = opened(elf.build({}, true, false));
    const auto tables = built(file, {stub_of(kText)});
    REQUIRE(tables);
    CHECK(tables->eh_frame_hdr.size() == 12 + 2 * 8);
  }
}

TEST_CASE("unwind: promised sizes") {
  UnwindFile elf;
  for (std::uint64_t i = 0; i < 20; ++i) elf.function(with_frame_pointer(kText + i * 0x20));
  const ElfFile file = opened(elf.build());
  const Size most_rebuilt{GENERATE(std::uint64_t{0}, ~std::uint64_t{0})};
  const bool unplaced = GENERATE(true, false);
  CAPTURE(most_rebuilt.value, unplaced);
  std::vector<Stub> stubs;
  std::vector<Stub> asked;
  for (std::uint64_t i = 0; i < 20; ++i) {
    stubs.push_back(stub_of(kText + i * 0x20));
    for (StubPiece& piece : stubs.back().pieces) piece.start.value += i * 0x70;
    asked.push_back(stub_of(kText + i * 0x20));
    if (!unplaced)
      for (StubPiece& piece : asked.back().pieces) piece.start.value += 0x5000 + i * 0x70;
  }
  auto writer = UnwindWriter::open(file, most_rebuilt);
  REQUIRE(writer);
  const auto sizes = writer->sizes(asked);
  const auto tables = writer->build(stubs, kPlaces);
  REQUIRE(sizes);
  REQUIRE(tables);
  CHECK(tables->table_edit.has_value() == (most_rebuilt.value == 0));
  CHECK(tables->eh_frame.size() <= sizes->eh_frame.value);
  if (!unplaced) CHECK(tables->eh_frame.size() == sizes->eh_frame.value);
  CHECK(tables->eh_frame_hdr.size() == sizes->eh_frame_hdr.value);
  CHECK(tables->debug_frame.size() == sizes->debug_frame.value);
}
