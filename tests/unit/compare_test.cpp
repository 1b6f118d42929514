// compare(): what it must let pass and what it must find, on files made by hand.

#include "libprobe/verify/compare.hpp"

#include <algorithm>
#include <string>

#include "catch.hpp"
#include "code_bytes.hpp"
#include "elf_builder.hpp"

namespace reprobe::test {
namespace {

constexpr std::uint64_t kText = 0x1000, kBase = 0x1080;

// Two note sections, and .stapsdt.base with or without SHF_ALLOC.
struct Library {
  explicit Library(std::uint64_t base_flags = SHF_ALLOC) {
    text = elf.section({.name = ".text",
                        .flags = SHF_ALLOC | SHF_EXECINSTR,
                        .addr = kText,
                        .bytes = bytes_of({0x90, 0x90, 0x90, 0xc3})});
    base = elf.section(
        {.name = ".stapsdt.base", .flags = base_flags, .addr = kBase, .bytes = bytes_of({0})});
  }

  Bytes note(const char* name, std::uint64_t location = kText) const {
    return elf.stapsdt({.location = location, .base = kBase, .provider = "p", .name = name});
  }

  Bytes build(const Bytes& first_notes, const Bytes& second_notes) {
    first =
        elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = first_notes});
    second =
        elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = second_notes});
    elf.load(PF_R | PF_X, text);
    elf.symbol({.name = "f", .value = kText, .size = 4, .type = STT_FUNC, .shndx = text});
    return elf.build();
  }

  void replace(Bytes& file, std::uint32_t section, const Bytes& notes) const {
    std::ranges::copy(notes, file.begin() + static_cast<std::ptrdiff_t>(elf.offset(section)));
    elf.poke(file, elf.shdr(section, "sh_size"), notes.size());
  }

  ElfBuilder elf;
  std::uint32_t text{}, base{}, first{}, second{};
};

// The rules of the findings, one after the other.
std::string found(const Bytes& before, const Bytes& after) {
  const auto a = ElfFile::open(borrowed_source(before));
  const auto b = ElfFile::open(borrowed_source(after));
  REQUIRE(a);
  REQUIRE(b);
  std::string rules;
  for (const Finding& finding : compare(*a, *b, {})) rules += finding.rule + " ";
  return rules;
}

}  // namespace

TEST_CASE("compare: a removed note that was dangling") {
  Library library;
  const Bytes live = library.note("live"), dead = library.note("dead", 0x20);
  const Bytes before = library.build(dead + live, library.note("more"));
  Bytes after = before;
  library.replace(after, library.first, live);
  CHECK(found(before, after).empty());
  // The section has also grown in its place.
  CHECK(found(after, before) == "verify-section verify-probe-added ");
}

TEST_CASE("compare: a removed note that was live") {
  Library library;
  const Bytes live = library.note("live"), other = library.note("other", kText + 1);
  const Bytes before = library.build(live + other, library.note("more"));
  Bytes after = before;
  library.replace(after, library.first, other);
  CHECK(found(before, after) == "verify-probe-lost ");
}

TEST_CASE("compare: of two equal live notes one is lost") {
  Library library;
  const Bytes live = library.note("live");
  const Bytes before = library.build(live + live, library.note("more"));
  Bytes after = before;
  library.replace(after, library.first, live);
  CHECK(found(before, after) == "verify-probe-lost ");
}

TEST_CASE("compare: of two equal notes one is dangling and removed, whichever it is") {
  Library library;
  const Bytes live = library.note("live");
  // R_*_NONE at a note's location proves it dangling, though the code at its address is the same.
  const bool first_is_dead = GENERATE(true, false);
  const std::uint32_t relocations = library.elf.section(
      {.name = ".rela.note.stapsdt",
       .type = SHT_RELA,
       .align = 8,
       .bytes = library.elf.relocation(first_is_dead ? 20 : live.size() + 20, 0, 0, 0),
       .link = ElfBuilder::kSymtab,
       .info = 4,
       .entsize = 24});
  const Bytes before = library.build(live + live, library.note("more"));
  REQUIRE(library.first == 4);
  Bytes after = before;
  library.replace(after, library.first, live);
  library.elf.poke(after, library.elf.shdr(relocations, "sh_size"), 0);
  CHECK(found(before, after).empty());
}

TEST_CASE("compare: notes in another order") {
  Library library;
  const Bytes live = library.note("live"), other = library.note("next", kText + 1);
  const Bytes before = library.build(live + other, library.note("more"));
  Bytes after = before;
  library.replace(after, library.first, other + live);
  CHECK(found(before, after) == "verify-probe-added ");
}

TEST_CASE("compare: a note section that stands behind the other one, at the end of the file") {
  Library library;
  const Bytes live = library.note("live");
  const Bytes before = library.build(live, library.note("more"));
  Bytes after = before;
  while (after.size() % 4 != 0) after.push_back(std::byte{0});
  library.elf.poke(after, library.elf.shdr(library.first, "sh_offset"), after.size());
  after = after + live;
  CHECK(found(before, after).empty());
}

TEST_CASE("compare: notes whose end wraps around 2^64 are not in the result") {
  Library library;
  const Bytes before = library.build({}, library.note("more"));
  Bytes after = before;
  library.elf.poke(after, library.elf.shdr(library.first, "sh_offset"), ~std::uint64_t{0} - 7);
  library.elf.poke(after, library.elf.shdr(library.first, "sh_size"), 16);
  CHECK(found(before, after) == "verify-section verify-bytes ");
}

TEST_CASE("compare: an empty note section may state any offset") {
  Library library;
  Bytes before = library.build({}, library.note("more"));
  library.elf.poke(before, library.elf.shdr(library.first, "sh_offset"), before.size() + 4096);
  CHECK(found(before, before).empty());
  Bytes after = before;
  after.back() ^= std::byte{1};
  CHECK_FALSE(found(before, after).empty());
}

TEST_CASE("compare: .stapsdt.base with another offset at its old address") {
  Library library;
  Bytes before = library.build(library.note("live"), library.note("more"));
  const ElfBuilder& elf = library.elf;
  const auto right = elf.offset(library.text) + kBase - kText;
  elf.poke(before, elf.phdr(0, "p_filesz"), kBase - kText + 1);
  elf.poke(before, elf.phdr(0, "p_memsz"), kBase - kText + 1);
  Bytes after = before;
  elf.poke(before, elf.shdr(library.base, "sh_offset"), right + 1);
  elf.poke(after, elf.shdr(library.base, "sh_offset"), right);
  CHECK(found(before, after).empty());
  CHECK(found(after, before) == "verify-section ");
}

TEST_CASE("compare: .stapsdt.base that is not allocated may stay so") {
  Library library(0);
  const Bytes live = library.note("live");
  const Bytes before = library.build(live, library.note("more"));
  CHECK(found(before, before).empty());
}

TEST_CASE("compare: each byte of notes that are written anew") {
  Library library;
  const Bytes live = library.note("live"), dead = library.note("dead", 0x20);
  const Bytes before = library.build(live + dead + live, {});
  Bytes after = before;
  // The last one's place is cleared.
  library.replace(after, library.first, live + live + Bytes(dead.size()));
  library.elf.poke(after, library.elf.shdr(library.first, "sh_size"), 2 * live.size());
  REQUIRE(found(before, after).empty());
  const std::uint64_t start = library.elf.offset(library.first);
  const auto is_found = [&](std::uint64_t at) {
    CAPTURE(at);
    Bytes wrong = after;
    wrong[static_cast<std::size_t>(at)] ^= std::byte{4};
    CHECK_FALSE(found(before, wrong).empty());
  };
  // Sizes, type, owner, addresses, strings, padding, and what is left of the old section.
  for (std::uint64_t at = start; at < start + 2 * live.size() + dead.size(); ++at) is_found(at);
  for (const char* field : {"sh_type", "sh_flags", "sh_size", "sh_addralign", "sh_name"}) {
    is_found(library.elf.shdr(library.first, field).at);
  }
  after.push_back(std::byte{1});
  CHECK(found(before, after) == "verify-bytes ");
  after.back() = std::byte{0};
  CHECK(found(before, after) == "verify-bytes ");
}

}  // namespace reprobe::test
