// The bytes of .note.reprobe, written by hand after docs/format.md, and what a hostile file can say
// in their place.
#include <memory>
#include <utility>

#include "catch.hpp"
#include "counting_source.hpp"
#include "elf_builder.hpp"
#include "libprobe/notes/index.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

constexpr std::uint64_t kAddress = 0x10000;  // of the note
constexpr std::uint64_t kDesc = 20, kEntry = kDesc + 28;

// Numbers as a file of that order has them.
class Writer {
 public:
  explicit Writer(std::endian order) : order_(order) {}

  Writer& number(std::uint64_t value, unsigned width = 4) {
    for (unsigned i = 0; i < width; ++i) {
      const unsigned shift = 8 * (order_ == std::endian::little ? i : width - 1 - i);
      bytes_.push_back(static_cast<std::byte>(value >> shift & 0xff));
    }
    return *this;
  }
  // The word at this place that names an address.
  Writer& word(std::uint64_t target) {
    return number(target == 0 ? 0 : (target - kAddress - bytes_.size()) & 0xffffffff);
  }
  Writer& text(std::string_view text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  [[nodiscard]] Bytes bytes() const { return bytes_; }

 private:
  std::endian order_;
  Bytes bytes_;
};

// Two probes; the second shares the provider, and has no arguments and no counter.
ProbeIndex sample() {
  ProbeIndex index;
  index.base = {0x3000};
  index.entries.push_back({.site = {0x1234},
                           .semaphore = {0x20000},
                           .slot = {},
                           .resume = {0x123f},
                           .kind = SiteKind::sled_nop10,
                           .size = 11,
                           .provider = "app",
                           .name = "go",
                           .arguments = "8@%rdi"});
  index.entries.push_back({.site = {0x1250},
                           .semaphore = {},
                           .slot = {},
                           .resume = {},
                           .kind = SiteKind::other,
                           .size = 0,
                           .provider = "app",
                           .name = "end",
                           .arguments = ""});
  return index;
}

Bytes sample_bytes(std::endian order) {
  Writer w(order);
  w.number(8).number(28 + 2 * 32 + 20).number(1).text(std::string_view("reprobe", 8));
  w.number(1).number(28).number(2).number(32).number(19).number(0).word(0x3000);
  w.word(0x1234).word(0x20000).number(0).word(0x123f);
  w.number(5, 2).number(11, 2).number(1).number(5).number(8);
  w.word(0x1250).number(0).number(0).number(0);
  w.number(0, 2).number(0, 2).number(1).number(15).number(0);
  w.text(std::string_view("\0app\0go\0008@%rdi\0end\0", 19)).number(0, 1);
  return w.bytes();
}

ElfHeader header(bool is64, std::endian order) {
  ElfHeader header;
  header.is64 = is64;
  header.order = order;
  header.machine = EM_X86_64;
  return header;
}

Result<ProbeIndex> decode(const Bytes& note, const ElfHeader& header) {
  return decode_index(ByteView(note).subspan(kDesc), VirtAddr{kAddress + kDesc}, header);
}

std::string refusal(const Bytes& note) {
  const auto index = decode(note, header(true, std::endian::little));
  return index ? "" : index.error().message;
}

// The little-endian sample with another number at an offset of the note.
Bytes poked(std::size_t at, std::uint64_t value, unsigned width = 4) {
  Bytes note = sample_bytes(std::endian::little);
  for (unsigned i = 0; i < width; ++i) note[at + i] = static_cast<std::byte>(value >> (8 * i));
  return note;
}

}  // namespace

TEST_CASE("an index is the bytes of docs/format.md, in both orders and classes", "[index]") {
  for (const bool is64 : {true, false}) {
    for (const std::endian order : {std::endian::little, std::endian::big}) {
      CAPTURE(is64, order == std::endian::big);
      const Bytes expected = sample_bytes(order);
      CHECK(index_size(sample()) == expected.size());
      const auto bytes =
          encode_index(sample(), VirtAddr{kAddress}, Size{expected.size()}, header(is64, order));
      REQUIRE(bytes);
      CHECK(*bytes == expected);
      const auto index = decode(expected, header(is64, order));
      REQUIRE(index);
      CHECK(*index == sample());
    }
  }
}

TEST_CASE("room to grow is zeros of the descriptor", "[index]") {
  const ElfHeader little = header(true, std::endian::little);
  const std::uint64_t size = index_size(sample());
  const auto bytes = encode_index(sample(), VirtAddr{kAddress}, Size{size + 40}, little);
  REQUIRE(bytes);
  REQUIRE(bytes->size() == size + 40);
  CHECK(load_uint(*bytes, 4, 4, std::endian::little) == size + 40 - kDesc);
  for (std::size_t i = static_cast<std::size_t>(size); i < bytes->size(); ++i) {
    CHECK((*bytes)[i] == std::byte{0});
  }
  const auto index = decode(*bytes, little);
  REQUIRE(index);
  CHECK(*index == sample());
  CHECK(!encode_index(sample(), VirtAddr{kAddress}, Size{size - 4}, little));
}

TEST_CASE("a word reaches 2 GiB, and wraps in files of 32 bits", "[index]") {
  ProbeIndex index = sample();
  const Size size{index_size(index)};
  const auto encoded = [&](std::uint64_t site, bool is64) {
    index.entries[1].site = {site};
    const ElfHeader h = header(is64, std::endian::little);
    const auto bytes = encode_index(index, VirtAddr{kAddress}, size, h);
    if (!bytes) return bytes.error().code == ErrorCode::refused ? std::string("refused") : "";
    const auto back = decode(*bytes, h);
    REQUIRE(back);
    CHECK(*back == index);
    return std::string("same");
  };
  constexpr std::uint64_t kWord = kAddress + kEntry + 32;  // the address of that word
  CHECK(encoded(kWord + 0x7fffffff, true) == "same");
  CHECK(encoded(kWord + 0x80000000, true) == "refused");
  CHECK(encoded(kWord, true) == "refused");  // 0 would say that there is none
  CHECK(encoded(0xfffffff0, false) == "same");
  CHECK(encoded(8, false) == "same");
}

TEST_CASE("a reader skips what later writers add", "[index]") {
  Writer w(std::endian::little);
  w.number(8).number(36 + 2 * 40 + 20 + 8).number(1).text(std::string_view("reprobe", 8));
  w.number(1).number(36).number(2).number(40).number(19).number(0xf0).word(0x3000);
  w.number(0x11111111).number(0x22222222);
  w.word(0x1234).word(0x20000).number(0).word(0x123f);
  w.number(5, 2).number(11, 2).number(1).number(5).number(8).number(~0ULL, 8);
  w.word(0x1250).number(0).number(0).number(0);
  w.number(0x7777, 2).number(0, 2).number(1).number(15).number(0).number(~0ULL, 8);
  w.text(std::string_view("\0app\0go\0008@%rdi\0end\0", 19)).number(0, 1).number(~0ULL, 8);
  const auto index = decode(w.bytes(), header(true, std::endian::little));
  REQUIRE(index);
  CHECK(*index == sample());
}

TEST_CASE("an index that contradicts itself is refused", "[index]") {
  CHECK(refusal(sample_bytes(std::endian::little)).empty());
  CHECK(refusal(poked(kDesc, 2)) == "version of the index; expected 1, found 2");
  CHECK(refusal(poked(kDesc + 4, 24)).starts_with("sizes of header and entries"));
  CHECK(refusal(poked(kDesc + 4, 30)).starts_with("sizes of header and entries"));
  CHECK(refusal(poked(kDesc + 12, 28)).starts_with("sizes of header and entries"));
  CHECK(refusal(poked(kDesc + 12, 0)).starts_with("sizes of header and entries"));
  CHECK(refusal(poked(kDesc + 8, 3)).starts_with("header, 3 entries and strings"));
  CHECK(refusal(poked(kDesc + 8, 0xffffffff)).starts_with("header, 4294967295 entries"));
  CHECK(refusal(poked(kDesc + 12, 0xfffffffc)).starts_with("header, 2 entries"));
  CHECK(refusal(poked(kDesc + 4, 0xfffffffc)).starts_with("header, 2 entries"));
  CHECK(refusal(poked(kDesc + 16, 0)).starts_with("header, 2 entries"));
  CHECK(refusal(poked(kDesc + 16, 21)).starts_with("header, 2 entries"));
  CHECK(refusal(poked(kDesc + 16, 18)).starts_with("strings; expected a NUL"));
  CHECK(refusal(poked(kEntry + 2 * 32, 'x', 1)).starts_with("strings; expected a NUL"));
  CHECK(refusal(poked(kEntry, 0)).starts_with("entry 0"));  // no site
  for (const std::size_t string : {20U, 24U, 28U}) {
    CHECK(refusal(poked(kEntry + 32 + string, 19)).starts_with("entry 1"));
    CHECK(refusal(poked(kEntry + 32 + string, 0xffffffff)).starts_with("entry 1"));
  }
  // Of no length that a file can have is anything read behind the end.
  const Bytes whole = sample_bytes(std::endian::little);
  for (std::size_t size = 0; size + kDesc + 1 < whole.size(); ++size) {
    const Bytes cut(whole.begin() + kDesc,
                    whole.begin() + static_cast<std::ptrdiff_t>(kDesc + size));
    CAPTURE(size);
    CHECK(!decode_index(cut, VirtAddr{kAddress + kDesc}, header(true, std::endian::little)));
  }
}

TEST_CASE("many entries that name one long string cost a multiple of the index", "[index]") {
  constexpr std::uint64_t kMany = 20000, kLong = 200000;
  Writer w(std::endian::little);
  w.number(8).number(28 + kMany * 32 + kLong).number(1).text(std::string_view("reprobe", 8));
  w.number(1).number(28).number(kMany).number(32).number(kLong).number(0).number(0);
  for (std::uint64_t i = 0; i < kMany; ++i) {
    w.word(0x1234).number(0).number(0).number(0).number(0).number(1).number(1).number(1);
  }
  w.number(0, 1).text(std::string(kLong - 2, 'x')).number(0, 1);
  const std::string why = refusal(w.bytes());
  CHECK(why.starts_with("entry "));
}

TEST_CASE("the index is the first note of that name in a mapped PT_NOTE", "[index]") {
  struct Case {
    const char* what;
    std::uint64_t align{4};
    std::uint64_t vaddr_off{};  // the PT_NOTE's address is wrong by this
    std::uint32_t type{1};
    std::string_view name{"reprobe\0", 8};
    bool found{true};
  };
  const Case cases[] = {
      {.what = "as it is written"},
      {.what = "padding for 8", .align = 8, .found = false},
      {.what = "no alignment at all", .align = 0},
      {.what = "not where a PT_LOAD maps it", .vaddr_off = 4, .found = false},
      {.what = "another type", .type = 2, .found = false},
      {.what = "another owner", .name = {"reprobx\0", 8}, .found = false},
      {.what = "a longer name", .name = {"reprobe\0\0", 9}, .found = false},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    ElfBuilder elf;
    Bytes notes = elf.note(std::string_view("GNU", 4), 3, Bytes(20));
    const Bytes desc(44);
    const Bytes mine = elf.note(c.name, c.type, desc);
    const std::uint64_t before = notes.size();
    notes.insert(notes.end(), mine.begin(), mine.end());
    const auto section = elf.section({.name = ".note.x",
                                      .type = SHT_NOTE,
                                      .flags = SHF_ALLOC,
                                      .addr = 0x1000,
                                      .align = 4,
                                      .bytes = notes});
    elf.load(PF_R, section);
    const auto header = elf.load(PF_R, section, 0, PT_NOTE);
    Bytes bytes = elf.build();
    elf.poke(bytes, elf.phdr(header, "p_align"), c.align);
    elf.poke(bytes, elf.phdr(header, "p_vaddr"), 0x1000 + c.vaddr_off);
    const auto file = ElfFile::open(memory_source(bytes));
    REQUIRE(file);
    const auto place = find_index(*file);
    REQUIRE(place.has_value() == c.found);
    if (!place) continue;
    CHECK(place->address.value == 0x1000 + before);
    CHECK(place->offset.value == elf.offset(section) + before);
    CHECK(place->size.value == mine.size());
    CHECK(!read_index(*file, *place));  // zeros: version 0
  }
}

TEST_CASE("PT_NOTEs over the same bytes are read once for all", "[index]") {
  ElfBuilder elf;
  Bytes notes;
  for (int i = 0; i < 20000; ++i) {
    const Bytes note = elf.note(std::string_view("abc", 4), 7, Bytes(4));
    notes.insert(notes.end(), note.begin(), note.end());
  }
  const auto section = elf.section({.name = ".note.x",
                                    .type = SHT_NOTE,
                                    .flags = SHF_ALLOC,
                                    .addr = 0x1000,
                                    .align = 4,
                                    .bytes = notes});
  elf.load(PF_R, section);
  for (int i = 0; i < 3000; ++i) elf.load(PF_R, section, 0, PT_NOTE);
  const auto counting = std::make_shared<CountingSource>(memory_source(elf.build()));
  const auto file = ElfFile::open(counting);
  REQUIRE(file);
  counting->forget();
  CHECK(!find_index(*file));
  std::uint64_t read = 0;
  for (const CountingSource::Slice& slice : counting->slices()) read += slice.size;
  CHECK(read != 0);
  CHECK(read <= counting->size());
}
