// plan_fix() on files that contradict themselves: it rewrites only bytes that belong to the notes
// alone, says why it leaves others, and what it writes reads as what it meant.

#include <string>

#include "catch.hpp"
#include "code_bytes.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/rewrite/fix.hpp"
#include "libprobe/verify/compare.hpp"

namespace reprobe::test {
namespace {

constexpr std::uint64_t kHostileText = 0x1000, kHostileBase = 0x1080, kHostileDead = 0x20;

// A library with one live and one dangling note, .symtab and the relocations that --emit-relocs
// keeps. The tests change `notes` and `relocations` before build().
struct Library {
  explicit Library(ElfBuilder::Kind kind = {}) : elf(kind) {
    live = elf.stapsdt(
        {.location = kHostileText, .base = kHostileBase, .provider = "p", .name = "live"});
    dead = elf.stapsdt(
        {.location = kHostileDead, .base = kHostileBase, .provider = "p", .name = "dead"});
  }

  Bytes build() {
    text = elf.section({.name = ".text",
                        .flags = SHF_ALLOC | SHF_EXECINSTR,
                        .addr = kHostileText,
                        .bytes = bytes_of({0x90, 0x90, 0x90, 0xc3})});
    const auto base = elf.section({.name = ".stapsdt.base",
                                   .flags = SHF_ALLOC,
                                   .addr = kHostileBase,
                                   .bytes = bytes_of({0})});
    note = elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = align, .bytes = notes});
    if (!relocations.empty()) {
      rela = elf.section({.name = ".rela.note.stapsdt",
                          .type = SHT_RELA,
                          .align = 8,
                          .bytes = relocations,
                          .link = ElfBuilder::kSymtab,
                          .info = note,
                          .entsize = entsize});
    }
    elf.load(PF_R | PF_X, text, base);
    elf.symbol({.name = "f", .value = kHostileText, .size = 4, .type = STT_FUNC, .shndx = text});
    return elf.build();
  }

  ElfBuilder elf;
  Bytes live, dead;
  Bytes notes;
  Bytes relocations;
  std::uint64_t align{4}, entsize{24};
  std::uint32_t text{}, note{}, rela{};
};

ElfFile open_file(const Bytes& file) {
  auto opened = ElfFile::open(borrowed_source(file));
  REQUIRE(opened);
  return std::move(*opened);
}

FixPlan plan(const Bytes& file, const FixOptions& options = {}) {
  const ElfFile elf = open_file(file);
  auto fix = plan_fix(elf, read_probes(elf), options);
  REQUIRE(fix);
  return std::move(*fix);
}

// The one reason why the file stays as it is.
std::string refusal(const Bytes& file) {
  const FixPlan fix = plan(file);
  CHECK(fix.plan.empty());
  REQUIRE(fix.refused.size() == 1);
  CHECK(fix.refused[0].where == ".note.stapsdt");
  return fix.refused[0].reason;
}

// The repaired file; a second fix of it has nothing to do.
Bytes fixed(const Bytes& file, const FixOptions& options = {}) {
  const FixPlan fix = plan(file, options);
  CHECK(fix.refused.empty());
  const ElfFile before = open_file(file);
  auto output = apply(fix.plan, before.source());
  REQUIRE(output);
  const ElfFile after = open_file(*output);
  for (const Finding& finding : compare(before, after, {})) {
    CAPTURE(finding.rule, finding.message);
    CHECK(false);
  }
  CHECK(plan(*output, options).plan.empty());
  return std::move(*output);
}

Bytes note_contents(const Bytes& file) {
  const ElfFile elf = open_file(file);
  const auto bytes = elf.contents(*elf.section(".note.stapsdt"));
  REQUIRE(bytes);
  return {bytes->begin(), bytes->end()};
}

}  // namespace

TEST_CASE("the file of these tests is repaired where nothing is wrong with it") {
  Library library;
  library.notes = library.dead + library.live;
  CHECK(note_contents(fixed(library.build())) == library.live);
}

TEST_CASE("notes over the bytes of something else are refused") {
  Library library;
  library.notes = library.dead + library.live;
  library.elf.segment({.type = PT_NOTE, .align = 4});
  Bytes file = library.build();
  const ElfBuilder& elf = library.elf;
  const std::uint64_t at = elf.offset(library.note), size = library.notes.size();
  const auto move_notes_to = [&](std::uint64_t offset) {
    const auto bytes = library.notes;
    std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(offset));
    elf.poke(file, elf.shdr(library.note, "sh_offset"), offset);
  };

  SECTION("a segment that is not loaded") {
    elf.poke(file, elf.phdr(0, "p_offset"), at + size - 4);
    elf.poke(file, elf.phdr(0, "p_filesz"), 8);
    CHECK(refusal(file) == "the section overlaps a segment");
  }
  SECTION("a loaded segment") {
    move_notes_to(elf.offset(library.text) + 8);
    CHECK(refusal(file) == "the section overlaps a segment");
  }
  SECTION("the program header table") {
    // The table that is read stands in its first two entries; the third is behind them.
    elf.poke(file, elf.ehdr("e_phnum"), 3);
    move_notes_to(elf.ehdr_size() + 2 * elf.phdr_stride());
    CHECK(refusal(file) == "the section overlaps a header table");
  }
  SECTION("another section") {
    elf.poke(file, elf.shdr(elf.symtab(), "sh_offset"), at + size - 1);
    CHECK(refusal(file) == "the section overlaps .symtab");
  }
  SECTION("a section that claims the whole file") {
    elf.poke(file, elf.shdr(elf.symtab(), "sh_offset"), 0);
    elf.poke(file, elf.shdr(elf.symtab(), "sh_size"), file.size());
    CHECK_FALSE(refusal(file).empty());
  }
}

TEST_CASE("section headers over the bytes of something else are refused") {
  Library library;
  library.notes = library.dead + library.live;
  library.elf.segment({.type = PT_NOTE, .align = 4});
  Bytes file = library.build();
  const ElfBuilder& elf = library.elf;
  elf.poke(file, elf.phdr(0, "p_offset"), elf.shdr(library.note, "sh_name").at);
  elf.poke(file, elf.phdr(0, "p_filesz"), 16);
  CHECK(refusal(file) == "the section headers overlap a segment");
}

TEST_CASE(
    "relocations of the notes that cannot follow them are refused before anything is planned") {
  Library library;
  library.notes = library.dead + library.live;
  library.relocations = library.elf.relocation(20, 0, 0, 0) +
                        library.elf.relocation(library.dead.size() + 20, 1, 1, 0);
  SECTION("over another section") {
    Bytes file = library.build();
    const ElfBuilder& elf = library.elf;
    elf.poke(file, elf.shdr(library.rela, "sh_size"),
             elf.offset(elf.symtab()) - elf.offset(library.rela) + 24);
    CHECK(refusal(file) == "its relocations cannot follow: the section overlaps .symtab");
  }
  SECTION("outside the file") {
    Bytes file = library.build();
    const ElfBuilder& elf = library.elf;
    elf.poke(file, elf.shdr(library.rela, "sh_offset"), file.size());
    CHECK(refusal(file) == "its relocations cannot follow: the section lies outside the file");
  }
  SECTION("with a part of an entry at its end") {
    library.relocations.resize(library.relocations.size() + 8);
    CHECK(refusal(library.build()) == "the relocations of the notes are cut short");
  }
  SECTION("with entries smaller than the structure") {
    library.entsize = 16;
    CHECK(refusal(library.build()) == "the relocations of the notes cannot be read");
  }
}

TEST_CASE("relocations of the notes follow them where sh_entsize is 0") {
  Library library;
  library.notes = library.dead + library.live;
  library.relocations = library.elf.relocation(20, 0, 0, 0) +
                        library.elf.relocation(library.dead.size() + 20, 1, 1, 0);
  library.entsize = 0;
  const Bytes output = fixed(library.build());
  const ElfFile file = open_file(output);
  const auto entries = file.relocations(*file.section(".rela.note.stapsdt"));
  REQUIRE(entries);
  REQUIRE(entries->size() == 1);
  CHECK(entries->front().offset == VirtAddr{20});
  CHECK(entries->front().symbol == 1);
}

TEST_CASE("relocations move with the descriptor where the padding before it changes") {
  Library library;
  library.align = 8;
  // With 8-byte padding a descriptor stands at 24, canonically at 20.
  const Bytes wide = library.elf.stapsdt(
      {.location = kHostileText, .base = kHostileBase, .provider = "p", .name = "live"}, 8);
  library.notes = wide + wide;
  const auto second = wide.size() + 24;
  library.relocations = library.elf.relocation(24, 1, 1, 0) +
                        library.elf.relocation(second, 1, 1, 0) +
                        library.elf.relocation(second + 16, 0, 0, 0);
  const Bytes output = fixed(library.build());
  CHECK(note_contents(output) == library.live + library.live);
  const ElfFile file = open_file(output);
  const auto entries = file.relocations(*file.section(".rela.note.stapsdt"));
  REQUIRE(entries);
  REQUIRE(entries->size() == 3);
  CHECK((*entries)[0].offset == VirtAddr{20});
  CHECK((*entries)[1].offset == VirtAddr{library.live.size() + 20});
  CHECK((*entries)[2].offset == VirtAddr{library.live.size() + 36});
}

TEST_CASE("a note of another owner is padded as the repaired notes around it") {
  FixOptions options;
  options.repairs = RepairChoice::of({}, std::vector<std::string>{"note-foreign"}).value();
  Library library;
  library.align = 8;
  const Bytes other = bytes_of({1, 2, 3});
  const auto wide = [&](const char* name) {
    return library.elf.stapsdt(
        {.location = kHostileText, .base = kHostileBase, .provider = "p", .name = name}, 8);
  };
  const std::string_view owner("GNU\0", 4), longer("other\0", 6);
  library.notes = wide("live") + library.elf.note(longer, 7, other, 8) + wide("live") +
                  library.elf.note(owner, 1, other, 8) + wide("live");
  const Bytes output = note_contents(fixed(library.build(), options));
  CHECK(output == library.live + library.elf.note(longer, 7, other) + library.live +
                      library.elf.note(owner, 1, other) + library.live);
}

TEST_CASE("notes that would read differently without the removed ones are refused") {
  Library library;
  const Bytes wide = library.elf.stapsdt(
      {.location = kHostileText, .base = kHostileBase, .provider = "p", .name = "live"}, 8);
  // Read with 4-byte padding: two notes of other owners. With 8-byte padding the first ends four
  // bytes later, inside the second, where a note of stapsdt starts, and another follows it.
  const Bytes first = library.elf.note(std::string_view("other\0\0\0", 8), 1, Bytes(8));
  const auto namesz = 2 * wide.size() - 8;
  const Bytes second =
      library.elf.number(namesz, 4) + wide + wide + library.elf.number(~std::uint64_t{0}, 8);
  // Four notes of stapsdt speak for 4, without the dangling ones it is one against two for 8.
  const Bytes others = first + second;
  library.notes = others + library.dead + library.dead + library.dead + library.live;
  const Bytes file = library.build();
  const ElfFile elf = open_file(file);
  const ProbeFile probes = read_probes(elf);
  REQUIRE(probes.probes.size() == 4);
  REQUIRE(probes.scan.foreign.size() == 2);
  CHECK(refusal(file) == "readers would not find the same notes in the repaired section");
}

}  // namespace reprobe::test
