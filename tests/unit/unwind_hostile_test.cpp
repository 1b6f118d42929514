// Unwind tables that contradict themselves: refused, or left out, and never read outside.
#include <algorithm>

#include "unwind_file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr Size kInOld{0};

TestFunction plain(std::uint64_t start, std::uint64_t size = 0x20) {
  return {start, size, hex("41 0e10 8602 43 0d06")};
}

std::vector<Stub> one_stub(std::uint64_t original = kText) {
  return {stub_at(kStubs, {{11, original}, {5, original + 1}})};
}

// The field's place in the file: sections stand in the order of their addresses, page-aligned.
std::size_t offset_in(const ElfFile& file, std::uint64_t address) {
  const auto offset = file.offset_of(VirtAddr{address});
  REQUIRE(offset);
  return static_cast<std::size_t>(offset->value);
}

std::string reason(Bytes bytes) {
  const ElfFile file = opened(std::move(bytes));
  const auto tables = built(file, one_stub());
  if (tables) return "";
  CHECK(tables.error().code == ErrorCode::refused);
  return tables.error().message;
}

}  // namespace

TEST_CASE("unwind: tables that cannot be rebuilt are refused") {
  UnwindFile elf;
  elf.function(plain(kText));
  elf.function(plain(kText + 0x20));
  const Bytes whole = elf.build();
  REQUIRE(reason(whole) == "");
  const ElfFile file = opened(whole);
  const std::size_t header = offset_in(file, kHeader);
  const auto poked = [&](std::size_t at, std::uint64_t value) {
    Bytes bytes = whole;
    put(bytes, {at, 4}, std::endian::little, value);
    return bytes;
  };
  CHECK(reason(poked(header, 0x3b031b02)) != "");  // version 2
  CHECK(reason(poked(header + 8, 3)) != "");       // more entries than there are
  CHECK(reason(poked(header + 8, 0xffffffff)) != "");
  CHECK(reason(poked(header + 12, kText + 0x40 - kHeader)) != "");  // not sorted
  CHECK(reason(poked(header + 16, 0x7fffffff)) != "");              // no FDE there
  CHECK(reason(poked(header + 16, kFrame - kHeader)) != "");        // a CIE there
  // Without a table .eh_frame is walked: a record that cannot be read would be missing.
  const Bytes unsearched = elf.build({}, true, false);
  REQUIRE(reason(unsearched) == "");
  Bytes cut = unsearched;
  put(cut, {offset_in(file, kFrame), 4}, std::endian::little, 0x7fffff00);
  CHECK(reason(cut) != "");
}

TEST_CASE("unwind: where the old table cannot take the stubs, a new one does") {
  UnwindFile elf;
  SECTION("one function has no neighbour") { elf.function(plain(kText)); }
  SECTION("landing pads keep an FDE of their own") {
    elf.function({kText, 0x20, {}, "zLR", hex("44330000")});
    elf.function({kText + 0x20, 0x20, {}, "zLR", hex("44330000")});
  }
  SECTION("another kind of frame between two functions") {
    elf.function(plain(kText));
    elf.function({kText + 0x20, 0x20, {}, "zRS"});
    elf.function({kText + 0x40, 0x20, {}, "zLR", hex("44330000")});
  }
  SECTION("functions that overlap") {
    elf.function(plain(kText, 0x30));
    elf.function(plain(kText + 0x20));
  }
  SECTION("code behind the stubs' first") {
    elf.function(plain(kText));
    elf.function(plain(kText + 0x20));
    elf.function(plain(kStubs + 0x100));
    const ElfFile file = opened(elf.build());
    auto stubs = one_stub();
    stubs.push_back(stub_at(kStubs + 0x200, {{8, kText}}));
    const auto tables = built(file, stubs, kInOld);
    REQUIRE(tables);
    CHECK_FALSE(tables->table_edit);
    return;
  }
  SECTION("no table, only .eh_frame") {
    elf.function(plain(kText));
    elf.function(plain(kText + 0x20));
    const auto tables = built(opened(elf.build({}, true, false)), one_stub(), kInOld);
    REQUIRE(tables);
    CHECK_FALSE(tables->table_edit);
    return;
  }
  const auto tables = built(opened(elf.build()), one_stub(), kInOld);
  REQUIRE(tables);
  CHECK_FALSE(tables->table_edit);
  CHECK_FALSE(tables->eh_frame_hdr.empty());
}

TEST_CASE("unwind: between functions that share an FDE a backtrace ends") {
  UnwindFile elf;
  elf.function(plain(kText));
  elf.function(plain(kText + 0x40));
  const ElfFile file = opened(elf.build());
  const auto tables = built(file, one_stub(), kInOld);
  REQUIRE(tables);
  REQUIRE(tables->table_edit);
  CHECK(tables->table_edit->first.value == kHeader + 12);
  // The pair's rows: the first function's, CFA and return address as in neither, the second's.
  const Bytes program =
      hex("41 0e10 8602 43 0d06"  // as it was
          "5c 0c0708 0710 c6"     // + 0x1c: rsp + 8, no return address
          "60 9001"               // + 0x20: the second function
          "41 0e10 8602 43 0d06");
  const Bytes& frames = tables->eh_frame;
  CHECK(std::search(frames.begin(), frames.end(), program.begin(), program.end()) != frames.end());
}

TEST_CASE("unwind: whatever byte is wrong, tables are right or refused") {
  UnwindFile elf;
  for (std::uint64_t i = 0; i < 4; ++i) elf.function(plain(kText + i * 0x20));
  const Bytes whole = elf.build();
  const ElfFile file = opened(whole);
  std::size_t built_anyway = 0;
  for (const auto& [from, size] : {std::pair{kFrame, 200U}, {kHeader, 12U + 4 * 8}}) {
    const std::size_t start = offset_in(file, from);
    for (std::size_t at = start; at < start + size; ++at) {
      for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
        CAPTURE(at, value);
        Bytes bytes = whole;
        bytes.at(at) = static_cast<std::byte>(value);
        const ElfFile poked = opened(std::move(bytes));
        for (const Size most_rebuilt : {kInOld, kMostRebuilt}) {
          const auto tables = built(poked, one_stub(), most_rebuilt);
          if (!tables) CHECK(tables.error().code == ErrorCode::refused);
          built_anyway += tables && !tables->eh_frame.empty() ? 1 : 0;
        }
      }
    }
  }
  CHECK(built_anyway > 100);
}

TEST_CASE("unwind: thousands of stubs of one long function") {
  UnwindFile elf;
  Bytes program;
  for (int i = 0; i < 500; ++i) program = program + hex("41 0e10 41 0e08");
  elf.function({kText, 0x1000, program});
  const ElfFile file = opened(elf.build());
  std::vector<Stub> stubs;
  for (std::uint64_t i = 0; i < 2000; ++i)
    stubs.push_back(stub_at(kStubs + i * 16, {{16, kText + (i * 7) % 1000}}));
  const auto tables = built(file, stubs);
  CAPTURE(tables ? "" : tables.error().message);
  REQUIRE(tables);
  CHECK(tables->eh_frame_hdr.size() == 12 + 2001 * 8);
}
