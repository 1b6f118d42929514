// Byte sources, loads and stores, and checked arithmetic.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/elf/bytes.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/elf/open_file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

// A folder that goes with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "reprobe-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void write_at(const std::filesystem::path& path, std::uint64_t offset, const Bytes& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  REQUIRE(file.good());
}

}  // namespace

TEST_CASE("Numbers are loaded and stored in both byte orders") {
  const Bytes bytes = bytes_of({0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x88});
  constexpr auto little = std::endian::little, big = std::endian::big;
  CHECK(load_uint(bytes, 7, 1, little) == 0x88);
  CHECK(load_uint(bytes, 0, 2, little) == 0x0201);
  CHECK(load_uint(bytes, 0, 2, big) == 0x0102);
  CHECK(load_uint(bytes, 1, 4, little) == 0x05040302);
  CHECK(load_uint(bytes, 1, 4, big) == 0x02030405);
  CHECK(load_uint(bytes, 0, 8, little) == 0x8807060504030201);
  CHECK(load_uint(bytes, 0, 8, big) == 0x0102030405060788);

  Bytes out(6, std::byte{0xee});
  store_uint(out, 1, 4, big, 0x01020304);
  CHECK(out == bytes_of({0xee, 1, 2, 3, 4, 0xee}));
  store_uint(out, 1, 4, little, 0x01020304);
  CHECK(out == bytes_of({0xee, 4, 3, 2, 1, 0xee}));
}

TEST_CASE("A slice is inside the file or an error") {
  const auto source = memory_source(bytes_of({1, 2, 3, 4}));
  CHECK(source->slice({0}, {4}, "x")->size() == 4);
  CHECK(source->slice({4}, {0}, "x")->empty());
  CHECK(load_uint(*source->slice({2}, {1}, "x"), 0, 1, std::endian::little) == 3);

  const auto past = source->slice({2}, {3}, "note section");
  REQUIRE(!past);
  CHECK(past.error().code == ErrorCode::unreadable);
  CHECK(past.error().message ==
        "note section lies outside the file; expected at least 0x5 bytes, found 0x4");
  CHECK(!source->slice({5}, {0}, "x"));
  const auto wrapping = source->slice({~std::uint64_t{0}}, {2}, "x");
  REQUIRE(!wrapping);
  CHECK(wrapping.error().message ==
        "x lies outside the file; expected more than 2^64 bytes, found 0x4");
}

TEST_CASE("Checked arithmetic never wraps") {
  constexpr auto max = ~std::uint64_t{0};
  CHECK(checked_add(max, 0) == max);
  CHECK(!checked_add(max, 1));
  CHECK(checked_mul(max, 1) == max);
  CHECK(!checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32));
  CHECK(in_range(max, max, 1));
  CHECK(!in_range(0, max, 2));
  CHECK(narrow<std::uint32_t>(0xffffffff) == 0xffffffff);
  CHECK(!narrow<std::uint32_t>(0x100000000));
}

TEST_CASE("map_file says what is wrong with a path") {
  const TempFolder folder;
  const auto message = [](const std::filesystem::path& path) {
    const auto source = map_file(path);
    REQUIRE(!source);
    CHECK(source.error().code == ErrorCode::unreadable);
    return source.error().message;
  };
  CHECK(message(folder / "none") == "cannot be opened: No such file or directory");
  CHECK(message(folder.path()) == "not a file to read; expected a regular file, found a directory");
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK(message(folder / "fifo") ==
        "not a file to read; expected a regular file, found a special file");

  std::ofstream(folder / "empty").close();
  const auto empty = map_file(folder / "empty");
  REQUIRE(empty);
  CHECK((*empty)->size() == 0);

  std::ofstream(folder / "short") << "abc";
  const auto small = map_file(folder / "short");
  REQUIRE(small);
  CHECK(as_text(*(*small)->slice({0}, {3}, "x")) == "abc");
}

TEST_CASE("A file that is opened gives the bytes of one that is mapped") {
  const TempFolder folder;
  Bytes bytes(300'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 7);
  std::ofstream(folder / "file").close();
  write_at(folder / "file", 0, bytes);
  const auto mapped = map_file(folder / "file");
  REQUIRE(mapped);
  // Small pieces near to each other and far away, more than are read, and one that is large.
  constexpr std::array<std::pair<std::uint64_t, std::uint64_t>, 12> kSlices = {{{0, 64},
                                                                                {64, 500},
                                                                                {299'000, 1000},
                                                                                {298'500, 100},
                                                                                {150'000, 8},
                                                                                {150'008, 1024},
                                                                                {299'999, 1},
                                                                                {70'000, 0},
                                                                                {90'000, 3},
                                                                                {200'000, 5},
                                                                                {0, 300'000},
                                                                                {120'000, 64}}};
  const auto opened = open_file(folder / "file");
  REQUIRE(opened);
  CHECK((*opened)->size() == 300'000);
  std::vector<ByteView> views;
  for (const auto& [offset, size] : kSlices)
    views.push_back((*opened)->slice({offset}, {size}, "x").value());
  for (std::size_t i = 0; i < kSlices.size(); ++i) {
    const auto& [offset, size] = kSlices.at(i);
    CHECK(std::ranges::equal(views[i], (*mapped)->slice({offset}, {size}, "x").value()));
  }
  const auto fresh = open_file(folder / "file");
  REQUIRE(fresh);
  for (const std::uint64_t size : {std::uint64_t{2}, ~std::uint64_t{0}}) {
    const auto past = (*fresh)->slice({299'999}, {size}, "it");
    const auto same = (*mapped)->slice({299'999}, {size}, "it");
    REQUIRE(!past);
    CHECK(past.error().message == same.error().message);
  }
  CHECK(!open_file(folder / "missing"));
  CHECK(!open_file(folder.path()));

  // Cut short while it is read: an error, not SIGBUS.
  const auto unread = open_file(folder / "file");
  REQUIRE(unread);
  std::filesystem::resize_file(folder / "file", 10);
  const auto cut = (*unread)->slice({200'000}, {64}, "x");
  REQUIRE(!cut);
  CHECK(cut.error().message == "the file was cut short while it was read");
}

TEST_CASE("A file over 4 GiB is read where its headers point") {
  ElfBuilder elf;
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .bytes = bytes_of({0x90, 0xc3})});
  const auto far = elf.section({.name = ".note.far", .type = SHT_NOTE, .bytes = Bytes(8)});
  elf.load(PF_R | PF_X, text);
  const Bytes small = elf.build();
  constexpr std::uint64_t kFar = (std::uint64_t{5} << 30) + 0x30;

  // The section and the section header table move behind a hole of 5 GiB.
  const TempFolder folder;
  const auto path = folder / "big";
  std::ofstream(path).close();
  std::error_code no_room;
  std::filesystem::resize_file(path, kFar + 0x10000, no_room);
  if (no_room) {
    WARN("skipped: no sparse files here: " << no_room.message());
    return;
  }
  Bytes head = small;
  const auto shoff = get(small, elf.ehdr("e_shoff"), std::endian::little);
  elf.poke(head, elf.ehdr("e_shoff"), kFar + 0x100);
  write_at(path, 0, head);
  Bytes table(head.begin() + static_cast<std::ptrdiff_t>(shoff), head.end());
  put(table, field_of("sh_offset", true, far * 64), std::endian::little, kFar);
  write_at(path, kFar + 0x100, table);
  write_at(path, kFar, bytes_of("far away"));

  const auto source = map_file(path);
  REQUIRE(source);
  const auto file = ElfFile::open(*source);
  REQUIRE(file);
  CHECK(file->problems().empty());
  const Section* section = file->section(".note.far");
  REQUIRE(section != nullptr);
  CHECK(section->offset.value == kFar);
  CHECK(section->header_offset.value == kFar + 0x100 + far * 64);
  CHECK(as_text(file->contents(*section).value()) == "far away");
  CHECK(file->offset_of({0x1001})->value == elf.offset(text) + 1);
}
