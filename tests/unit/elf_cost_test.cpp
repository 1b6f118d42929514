// How much the reader reads and does: it must not grow with the size of what is not asked for,
// nor faster than the file for what hostile counts can state.
#include <algorithm>

#include "catch.hpp"
#include "counting_source.hpp"
#include "elf_builder.hpp"
#include "libprobe/elf/file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// A 286 MB library in little memory: the first `head` bytes are a real file's, a hole follows, and
// the section header table stands behind it. The hole's bytes must not be asked for.
class SparseSource final : public ByteSource {
 public:
  SparseSource(Bytes head, Bytes tail, std::uint64_t tail_at)
      : head_(std::move(head)), tail_(std::move(tail)), tail_at_(tail_at) {}

  std::uint64_t size() const override { return tail_at_ + tail_.size(); }
  Result<ByteView> slice(FileOffset offset, Size size, std::string_view what) const override {
    if (in_range(offset.value, tail_at_, tail_.size()))
      return borrowed_source(tail_)->slice({offset.value - tail_at_}, size, what);
    if (offset.value + size.value <= head_.size())
      return borrowed_source(head_)->slice(offset, size, what);
    return fail(ErrorCode::internal, "", "asked for the hole: " + std::string(what));
  }

 private:
  Bytes head_, tail_;
  std::uint64_t tail_at_;
};

}  // namespace

TEST_CASE("Opening a 286 MB library touches its headers and section names only") {
  ElfBuilder elf;
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .bytes = bytes_of({0x90, 0xc3})});
  const auto note =
      elf.section({.name = ".note.stapsdt",
                   .type = SHT_NOTE,
                   .bytes = elf.stapsdt({.location = 0x1000, .provider = "p", .name = "n"})});
  elf.load(PF_R | PF_X, text);
  elf.symbol({.name = "f", .value = 0x1000, .size = 2, .type = STT_FUNC, .shndx = text});
  Bytes head = elf.build();
  const std::uint64_t names = static_cast<std::uint32_t>(elf.shnum()) - 1;
  const std::uint64_t names_size =
      get(head, elf.shdr(static_cast<std::uint32_t>(names), "sh_size"), std::endian::little);

  constexpr std::uint64_t kEnd = 286 * kMiB;
  const auto shoff = get(head, elf.ehdr("e_shoff"), std::endian::little);
  Bytes tail(head.begin() + static_cast<std::ptrdiff_t>(shoff), head.end());
  // .text fills the hole; one more field makes it the large part of the file.
  put(tail, field_of("sh_size", true, text * 64), std::endian::little, kEnd - 0x1000);
  elf.poke(head, elf.ehdr("e_shoff"), kEnd);
  const auto counting = std::make_shared<CountingSource>(
      std::make_shared<SparseSource>(std::move(head), std::move(tail), kEnd));

  const auto file = ElfFile::open(counting);
  REQUIRE(file);
  REQUIRE(file->sections().size() == elf.shnum());
  CHECK(file->problems().empty());
  CHECK(counting->bytes() == 64 + 56 + elf.shnum() * 64 + names_size);

  // What is asked for is read, and no more.
  counting->forget();
  REQUIRE(file->contents(file->sections()[note]));
  CHECK(counting->bytes() == file->sections()[note].size.value);
  counting->forget();
  CHECK(file->bytes_at({0x1000}, {16}).size() == 2);
  CHECK(counting->bytes() == 2);
  counting->forget();
  CHECK(file->section_containing({0x200000}) == &file->sections()[text]);
  CHECK(file->offset_of({0x1001}));
  CHECK(counting->bytes() == 0);
}

TEST_CASE("A million symbols that name one string of a megabyte") {
  // Looking for the string's end anew for each symbol would take a terabyte of reading.
  constexpr std::size_t kCount = 1'000'000;
  ElfBuilder elf;
  Bytes entries(kCount * 24);
  for (std::size_t i = 0; i < kCount; ++i)
    put(entries, field_of("st_name", true, i * 24), std::endian::little, i % kMiB + 1);
  elf.section({.name = ".symtab", .type = SHT_SYMTAB, .bytes = std::move(entries), .link = 2});
  Bytes strings(kMiB + 2, std::byte{'a'});
  strings.front() = strings.back() = std::byte{0};
  elf.section({.name = ".strtab", .type = SHT_STRTAB, .bytes = strings});
  const auto file = ElfFile::open(memory_source(elf.build()));
  REQUIRE(file);
  const auto symbols = file->symbols(*file->section(".symtab"));
  REQUIRE(symbols);
  REQUIRE(symbols->size() == kCount);
  CHECK((*symbols)[0].name.size() == kMiB);
  CHECK((*symbols)[12345].name.size() == kMiB - 12345);
}

TEST_CASE("Strings without an end are not names") {
  const StringTable strings(as_bytes(std::string_view("ab\0cd", 5)));
  CHECK(strings.at(0) == "ab");
  CHECK(strings.at(1) == "b");
  CHECK(strings.at(2) == "");
  CHECK(!strings.at(3));
  CHECK(!strings.at(5));
  CHECK(!strings.at(~std::uint64_t{0}));

  // Long strings, at and around the length at which their ends are looked up.
  for (const std::size_t length : {4095u, 4096u, 4097u, 10000u}) {
    std::string text = "x" + std::string(1, '\0') + std::string(length, 'a') + '\0' + "tail" +
                       '\0' + std::string(length, 'b');
    const StringTable table(as_bytes(text));
    CAPTURE(length);
    CHECK(table.at(0) == "x");
    CHECK(table.at(2) == std::string(length, 'a'));
    CHECK(table.at(3) == std::string(length - 1, 'a'));
    CHECK(table.at(2 + length + 1) == "tail");
    CHECK(!table.at(2 + length + 6));
  }
}

TEST_CASE("Sections that all share one long name do not fill the memory") {
  constexpr std::uint32_t kCount = 20'000;
  ElfBuilder elf;
  for (std::uint32_t i = 0; i < kCount; ++i) elf.section({});
  elf.section({.name = std::string(kMiB, 'n')});
  Bytes bytes = elf.build();
  for (std::uint32_t i = 1; i <= kCount; ++i) elf.poke(bytes, elf.shdr(i, "sh_name"), 1);
  const std::uint64_t size = bytes.size();
  const auto file = ElfFile::open(memory_source(std::move(bytes)));
  REQUIRE(file);
  CHECK(file->sections().size() == elf.shnum());
  std::uint64_t total = 0;
  for (const Section& s : file->sections()) total += s.name.size();
  CHECK(total <= 4 * size);
  REQUIRE(file->problems().size() == 1);
  CHECK(file->problems()[0].message ==
        "section names are too long together; expected a few times the file's size, found more");
}

TEST_CASE("A hundred thousand sections are searched a hundred thousand times") {
  constexpr std::uint32_t kCount = 100'000;
  ElfBuilder elf({.extended_numbering = true});
  for (std::uint32_t i = 0; i < kCount; ++i)
    elf.section({.type = SHT_NOBITS,
                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                 .addr = 0x1000 + 16 * std::uint64_t{i},
                 // Each second one covers all that follow: nested without end.
                 .size = i % 2 == 0 ? 16 : 16 * std::uint64_t{kCount}});
  const auto file = ElfFile::open(memory_source(elf.build()));
  REQUIRE(file);
  REQUIRE(file->sections().size() == kCount + 2);
  std::uint32_t right = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const Section* found = file->section_containing({0x1000 + 16 * std::uint64_t{i} + 15});
    // Of equal sizes the first wins: section index 2, the first of the large ones.
    const std::uint32_t expected = i % 2 == 0 ? i + 1 : 2;
    right += found != nullptr && found->index == expected;
  }
  CHECK(right == kCount);
}

TEST_CASE("Five thousand note segments over the same bytes are read once") {
  ElfBuilder elf({.section_headers = false});
  for (int i = 0; i < 5'000; ++i)
    elf.segment({.type = PT_NOTE, .offset = 0x100, .filesz = 0x80000, .memsz = 0x80000});
  Bytes bytes = elf.build();
  bytes.resize(0x80100);
  const auto counting = std::make_shared<CountingSource>(memory_source(std::move(bytes)));
  const auto file = ElfFile::open(counting);
  REQUIRE(file);
  counting->forget();
  CHECK(file->build_id() == "");
  std::uint64_t given = 0;
  for (const CountingSource::Slice& slice : counting->slices()) given += slice.size;
  CHECK(given == 0x80000);
}

TEST_CASE("Problems are counted, not collected without end") {
  constexpr std::uint32_t kCount = 3000;
  ElfBuilder elf;
  for (std::uint32_t i = 0; i < kCount; ++i) elf.section({});
  Bytes bytes = elf.build();
  for (std::uint32_t i = 1; i <= kCount; ++i) elf.poke(bytes, elf.shdr(i, "sh_name"), 0xffffff);
  const auto file = ElfFile::open(memory_source(bytes));
  REQUIRE(file);
  REQUIRE(file->problems().size() == 1001);
  CHECK(file->problems().back().message ==
        "further problems are left out; expected at most 1000, found more");
}
