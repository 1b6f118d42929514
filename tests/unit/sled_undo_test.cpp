// The record that gives a rewritten file its original bytes back.

#include <algorithm>
#include <memory>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/rewrite/section_table.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

Bytes small_file() {
  ElfBuilder elf;
  Bytes code(4096);
  for (std::size_t i = 0; i < code.size(); ++i) code[i] = static_cast<std::byte>(i * 7);
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .align = 16,
                                 .bytes = code});
  elf.load(PF_R | PF_X, text);
  return elf.build();
}

// The file with some bytes of its code replaced and a record of that.
Bytes rewritten(const Bytes& original) {
  const auto file = ElfFile::open(borrowed_source(original)).value();
  const std::uint64_t text = file.section(".text")->offset.value;
  Plan plan;
  const auto replace = [&](std::uint64_t at, Bytes bytes) {
    REQUIRE(plan.replace(file.source(), FileOffset{text + at}, std::move(bytes), "test"));
  };
  replace(0, bytes_of({0xe9, 1, 2, 3, 4}));
  // Differences at both ends and equal bytes between.
  Bytes sparse(original.begin() + static_cast<std::ptrdiff_t>(text + 100),
               original.begin() + static_cast<std::ptrdiff_t>(text + 400));
  sparse.front() ^= std::byte{0xff};
  sparse[150] ^= std::byte{1};
  sparse[152] ^= std::byte{1};
  sparse.back() ^= std::byte{0xff};
  replace(100, sparse);
  replace(4095, bytes_of({0xcc}));
  Section record;
  record.name = std::string(kUndoSection);
  record.type = SHT_PROGBITS;
  record.addralign = Size{1};
  Bytes bytes = make_undo(plan, file.source()).value();
  // Far less than the 306 bytes of the edits: equal bytes are not kept.
  CHECK(bytes.size() < 64 + 8 + 2 + 32 + 1 + 40);
  record.size = Size{bytes.size()};
  record.offset = plan.append(file.source(), std::move(bytes), Size{1}, "record").value();
  auto table = SectionTable::of(file).value();
  REQUIRE(table.add(record, "record"));
  REQUIRE(table.write(plan));
  return apply(plan, file.source()).value();
}

Result<Bytes> undo_of(const Bytes& bytes) {
  const auto file = ElfFile::open(borrowed_source(bytes));
  REQUIRE(file);
  const auto plan = plan_undo(*file);
  if (!plan) return tl::unexpected(plan.error());
  return apply(*plan, file->source());
}

}  // namespace

TEST_CASE("the original comes back byte for byte", "[sled]") {
  const Bytes original = small_file();
  const Bytes result = rewritten(original);
  CHECK(result.size() > original.size());
  CHECK_FALSE(std::ranges::equal(original, ByteView(result).first(original.size())));
  const auto back = undo_of(result);
  REQUIRE(back);
  CHECK(*back == original);
}

TEST_CASE("a file without the record has nothing to undo", "[sled]") {
  const auto back = undo_of(small_file());
  REQUIRE_FALSE(back);
  CHECK(back.error().code == ErrorCode::refused);
}

TEST_CASE("a byte that another tool changed since is seen", "[sled]") {
  Bytes result = rewritten(small_file());
  const auto file = ElfFile::open(borrowed_source(result)).value();
  const auto text = static_cast<std::size_t>(file.section(".text")->offset.value);
  result[text + 2000] ^= std::byte{1};
  const auto back = undo_of(result);
  REQUIRE_FALSE(back);
  CHECK(back.error().code == ErrorCode::refused);
  CHECK(back.error().message.find("changed") != std::string::npos);
}

TEST_CASE("no damaged record gives bytes", "[sled]") {
  const Bytes result = rewritten(small_file());
  const auto file = ElfFile::open(borrowed_source(result)).value();
  const Section& section = *file.section(kUndoSection);
  const auto begin = static_cast<std::size_t>(section.offset.value);
  const auto size = static_cast<std::size_t>(section.size.value);
  for (std::size_t i = 0; i < size; ++i) {
    for (const int bit : {0x01, 0x80, 0xff}) {
      Bytes damaged = result;
      damaged[begin + i] ^= static_cast<std::byte>(bit);
      CAPTURE(i, bit);
      CHECK_FALSE(undo_of(damaged).has_value());
    }
  }
}
