// The index of small files, made by hand: what relativize adds, what verify says when a byte of it
// is another, how it follows the notes and gives them back.
#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/index_probes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/rewrite/fix.hpp"
#include "libprobe/rewrite/index/from_index.hpp"
#include "libprobe/rewrite/index/relativize.hpp"
#include "libprobe/rewrite/index/renew.hpp"
#include "libprobe/verify/compare.hpp"
#include "libprobe/verify/compare_index.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

struct Kind {
  bool is64;
  std::endian order;
  std::uint16_t machine;
  Bytes nop;
  Bytes ret;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kAll{
      {true, std::endian::little, EM_X86_64, bytes_of({0x90}), bytes_of({0xc3})},
      {false, std::endian::little, EM_386, bytes_of({0x90}), bytes_of({0xc3})},
      {true, std::endian::little, EM_AARCH64, bytes_of({0x1f, 0x20, 0x03, 0xd5}),
       bytes_of({0xc0, 0x03, 0x5f, 0xd6})},
      {true, std::endian::big, EM_PPC64, bytes_of({0x60, 0x00, 0x00, 0x00}),
       bytes_of({0x4e, 0x80, 0x00, 0x20})}};
  return kAll;
}

constexpr std::uint64_t kText = 0x2000, kData = 0x5000, kBase = 0x1800;

struct Parts {
  bool notes{true};
  std::uint64_t third_site{};  // 0: its own
  std::uint64_t third_base{kBase};
  std::uint64_t note_align{4};
  std::uint64_t note_flags{};
  bool foreign{};
  std::uint64_t data{kData};
};

// A library with three functions, each `nop; ret`, and a probe on each nop; the first probe has a
// counter. Behind the first page's bytes is padding.
struct Library {
  ElfBuilder elf;
  Bytes file;
  Bytes stapsdt;
  std::uint32_t notes{};

  explicit Library(const Kind& kind, const Parts& parts = {})
      : elf({.is64 = kind.is64, .order = kind.order, .type = ET_DYN, .machine = kind.machine}) {
    Bytes code;
    for (std::size_t i = 0; i < 3; ++i) {
      std::uint64_t site = kText + code.size();
      if (i == 2 && parts.third_site != 0) site = parts.third_site;
      append(stapsdt, elf.stapsdt({.location = site,
                                   .base = i == 2 ? parts.third_base : kBase,
                                   .semaphore = i == 0 ? parts.data : 0,
                                   .provider = "p",
                                   .name = "n" + std::to_string(i),
                                   .arguments = i == 2 ? "4@8(%rsp)" : ""}));
      append(code, kind.nop);
      append(code, kind.ret);
    }
    if (parts.foreign) append(stapsdt, elf.note(std::string_view("abc", 4), 1, Bytes(4)));
    const auto id = elf.section({.name = ".note.gnu.build-id",
                                 .type = SHT_NOTE,
                                 .flags = SHF_ALLOC,
                                 .addr = 0x1000,
                                 .align = 4,
                                 .bytes = elf.note(std::string_view("GNU", 4), 3, Bytes(20))});
    const auto base = elf.section(
        {.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = kBase, .bytes = bytes_of({0})});
    const auto text = elf.section({.name = ".text",
                                   .flags = SHF_ALLOC | SHF_EXECINSTR,
                                   .addr = kText,
                                   .align = 4,
                                   .bytes = code});
    const auto data = elf.section({.name = ".probes",
                                   .flags = SHF_ALLOC | SHF_WRITE,
                                   .addr = parts.data,
                                   .align = 2,
                                   .bytes = bytes_of({0, 0})});
    if (parts.notes) {
      notes = elf.section({.name = ".note.stapsdt",
                           .type = SHT_NOTE,
                           .flags = parts.note_flags,
                           .align = parts.note_align,
                           .bytes = stapsdt});
    }
    elf.load(PF_R, id, base);
    elf.load(PF_R, id, 0, PT_NOTE);
    elf.load(PF_R | PF_X, text);
    elf.load(PF_R | PF_W, data);
    for (std::uint64_t i = 0; i < 3; ++i) {
      elf.symbol({.name = "f" + std::to_string(i),
                  .value = kText + i * code.size() / 3,
                  .size = code.size() / 3,
                  .type = STT_FUNC,
                  .shndx = text});
    }
    file = elf.build();
  }

  static void append(Bytes& to, const Bytes& bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
  }
};

ElfFile open(Bytes bytes) {
  auto file = ElfFile::open(memory_source(std::move(bytes)));
  REQUIRE(file);
  return std::move(*file);
}

Result<RelativizePlan> plan(const ElfFile& file, const RelativizeOptions& options = {}) {
  return plan_relativize(file, read_probes(file), options);
}

Bytes output(const Plan& plan, const ElfFile& file) {
  auto bytes = apply(plan, file.source());
  REQUIRE(bytes);
  return std::move(*bytes);
}

Bytes relativized(const Bytes& bytes) {
  const ElfFile file = open(bytes);
  const auto result = plan(file);
  INFO((result ? "" : result.error().message));
  REQUIRE(result);
  return output(result->plan, file);
}

std::string refusal(const Library& library) {
  const auto result = plan(open(library.file));
  REQUIRE(!result);
  CHECK(result.error().code == ErrorCode::refused);
  return result.error().message;
}

RelativizeOptions only(std::string name) {
  return {.selected = [name](const Probe& probe) { return probe.note.name == name; }};
}

// The rules that verify reports for the two files.
std::string rules(const Bytes& before, const Bytes& after) {
  std::string text;
  for (const Finding& finding : compare(open(before), open(after), {})) {
    if (!text.ends_with(finding.rule + " ")) text += finding.rule + " ";
  }
  return text;
}

// The file without its section of notes, as objcopy -R leaves it: by its name alone.
Bytes without_notes(const Bytes& bytes) {
  const ElfFile file = open(bytes);
  const Section* section = file.section(".note.stapsdt");
  REQUIRE(section != nullptr);
  Bytes result = bytes;
  const Section* names = file.section_at(static_cast<std::uint32_t>(file.header().shstrndx));
  const std::uint64_t name = load_uint(
      bytes, static_cast<std::size_t>(section->header_offset.value), 4, file.header().order);
  result[static_cast<std::size_t>(names->offset.value + name + 1)] = std::byte{'X'};
  store_uint(result, static_cast<std::size_t>(section->header_offset.value) + 4, 4,
             file.header().order, SHT_PROGBITS);
  return result;
}

}  // namespace

TEST_CASE("relativize adds an index of every note, in every class and order", "[index]") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.machine);
    const Library library(kind);
    const Bytes bytes = relativized(library.file);
    const ElfFile after = open(bytes);
    const auto place = find_index(after);
    REQUIRE(place);
    const auto index = read_index(after, *place);
    REQUIRE(index);
    CHECK(!index->partial);
    CHECK(index->base.value == kBase);
    REQUIRE(index->entries.size() == 3);
    const std::uint64_t step = kind.nop.size() + kind.ret.size();
    for (std::size_t i = 0; i < 3; ++i) {
      const IndexEntry& entry = index->entries[i];
      CHECK(entry.site.value == kText + i * step);
      CHECK(entry.semaphore.value == (i == 0 ? kData : 0));
      CHECK(entry.resume.value == entry.site.value + kind.nop.size());
      CHECK(entry.kind == SiteKind::nop);
      CHECK(entry.size == kind.nop.size());
      CHECK(entry.provider == "p");
      CHECK(entry.name == "n" + std::to_string(i));
      CHECK(entry.arguments == (i == 2 ? "4@8(%rsp)" : ""));
    }
    CHECK((after.load_segment(place->address)->flags & PF_W) == 0);
    CHECK(rules(library.file, bytes).empty());
    const auto again = plan(after);
    REQUIRE(again);
    CHECK(again->plan.empty());
  }
}

TEST_CASE("notes that could not be given back are refused", "[index]") {
  const Kind& kind = kinds().front();
  CHECK(refusal(Library(kind, {.notes = false})) == "no probe notes");
  CHECK(refusal(Library(kind, {.foreign = true})) == "the notes are not canonical");
  CHECK(refusal(Library(kind, {.third_base = 0})) ==
        "notes that state other addresses than the file's own");
  CHECK(refusal(Library(kind, {.note_flags = SHF_ALLOC})) ==
        "the notes are loaded with the program");
  CHECK(refusal(Library(kind, {.data = 0x100005000}))
            .starts_with("the new bytes would be out of reach; expected at most 0x80000000 bytes"));
}

TEST_CASE("dangling notes are left out of the index", "[index]") {
  const Library library(kinds().front(), {.third_site = 0x9000});
  const ElfFile file = open(library.file);
  const auto result = plan(file);
  REQUIRE(result);
  CHECK(result->dangling == 1);
  CHECK(result->index.entries.size() == 2);
  CHECK(rules(library.file, output(result->plan, file)).empty());
}

TEST_CASE("an index of some of the probes says so, and stays one", "[index]") {
  const Library library(kinds().front());
  const ElfFile file = open(library.file);
  const auto result = plan(file, only("n2"));
  REQUIRE(result);
  CHECK(result->index.partial);
  REQUIRE(result->index.entries.size() == 1);
  const Bytes bytes = output(result->plan, file);
  CHECK(rules(library.file, bytes).empty());
  const ElfFile after = open(bytes);
  const auto same = plan(after, only("n2"));
  REQUIRE(same);
  CHECK(same->plan.empty());
  Plan nothing;
  const auto renewed = renew_index(nothing, after);
  REQUIRE(renewed);
  CHECK(renewed->fate == IndexFate::same);
  CHECK(nothing.empty());
  const auto other = plan(after, only("n1"));
  REQUIRE(other);
  CHECK(other->renewed);
  CHECK(rules(bytes, output(other->plan, after)).empty());
  // There is no place for three.
  const auto all = plan(after);
  REQUIRE(!all);
  CHECK(all.error().message == "the index has grown and does not fit its place");
}

TEST_CASE("verify notices a byte of the index, its headers or its neighbours", "[index]") {
  const Library library(kinds().front());
  const Bytes good = relativized(library.file);
  const ElfFile file = open(good);
  const auto place = find_index(file);
  REQUIRE(place);
  const auto at = static_cast<std::size_t>(place->offset.value);
  const auto with = [&](std::size_t offset, int value) {
    Bytes bytes = good;
    REQUIRE(bytes[offset] != static_cast<std::byte>(value));
    bytes[offset] = static_cast<std::byte>(value);
    return rules(library.file, bytes);
  };
  const std::size_t entry = at + 20 + 28;
  CHECK(with(entry, 0x55).starts_with("verify-index"));       // a site
  CHECK(with(entry + 4, 0x55).starts_with("verify-index"));   // a counter
  CHECK(with(entry + 12, 0x55).starts_with("verify-index"));  // behind the nop
  CHECK(with(entry + 16, 2).starts_with("verify-index"));     // another nop
  CHECK(with(entry + 18, 2).starts_with("verify-index"));
  CHECK(with(entry + 24, 1).starts_with("verify-index"));   // another name
  CHECK(with(at + 20 + 8, 2).starts_with("verify-index"));  // the last entry is gone
  CHECK(with(at + 20 + 8, 0).starts_with("verify-index"));  // all are
  CHECK(with(at + 20 + 24, 0x55).starts_with("verify-index"));
  CHECK(with(at + 20, 2).starts_with("verify-index"));
  // Another file's byte: code, and the last byte of the old file.
  CHECK(with(static_cast<std::size_t>(file.offset_of({kText})->value), 0x91) != "");
  CHECK(with(library.file.size() - 1, 0x55) == "verify-bytes ");
  for (const Segment& segment : file.segments()) {
    CAPTURE(segment.index, segment.type);
    for (const char* field : {"p_type", "p_flags", "p_offset", "p_vaddr", "p_filesz", "p_memsz"}) {
      CAPTURE(field);
      const Field place_of = library.elf.phdr(segment.index, field);
      Bytes bytes = good;
      const std::uint64_t old = load_uint(bytes, place_of.at, place_of.width, std::endian::little);
      library.elf.poke(bytes, place_of, old ^ 2);
      const auto after = ElfFile::open(memory_source(bytes));
      if (!after) continue;
      CHECK(!compare(open(library.file), *after, {}).empty());
    }
  }
  for (const Section& section : file.sections()) {
    CAPTURE(section.name);
    for (std::size_t field = 4; field < 64; field += 4) {  // sh_name is the reader's
      CAPTURE(field);
      Bytes bytes = good;
      bytes[static_cast<std::size_t>(section.header_offset.value) + field] ^= std::byte{4};
      const auto after = ElfFile::open(memory_source(bytes));
      if (!after) continue;
      CHECK(!compare(open(library.file), *after, {}).empty());
    }
  }
}

TEST_CASE("the index follows a rewrite of the notes", "[index]") {
  const Library library(kinds().front());
  const Bytes bytes = relativized(library.file);
  const ElfFile file = open(bytes);
  const Section* notes = file.section(".note.stapsdt");
  REQUIRE(notes != nullptr);
  const Bytes contents(library.stapsdt);
  SECTION("a note is gone") {
    // The first: 12 + 8 + 24 bytes and "p", "n0", "".
    Bytes left(contents.begin() + 52, contents.end());
    left.resize(contents.size());
    Plan change;
    REQUIRE(change.replace(file.source(), notes->offset, left, "test"));
    Bytes size(8);
    store_uint(size, 0, 8, std::endian::little, contents.size() - 52);
    REQUIRE(
        change.replace(file.source(), FileOffset{notes->header_offset.value + 32}, size, "test"));
    const Bytes stale = output(change, file);
    const ElfFile stale_file = open(stale);
    CHECK(index_contradiction(stale_file, read_probes(stale_file)));
    const auto renewed = renew_index(change, file);
    REQUIRE(renewed);
    CHECK(renewed->fate == IndexFate::renewed);
    const ElfFile after = open(output(change, file));
    CHECK(!index_contradiction(after, read_probes(after)));
    const auto index = read_index(after, *find_index(after));
    REQUIRE(index);
    REQUIRE(index->entries.size() == 2);
    CHECK(index->entries[0].name == "n1");
  }
  SECTION("what no index can state empties it") {
    Plan change;
    Bytes flags(8);
    store_uint(flags, 0, 8, std::endian::little, 1);  // the notes are no SHT_NOTE any more
    REQUIRE(change.replace(file.source(), FileOffset{notes->header_offset.value + 4},
                           Bytes(flags.begin(), flags.begin() + 4), "test"));
    const auto renewed = renew_index(change, file);
    REQUIRE(renewed);
    CHECK(renewed->fate == IndexFate::emptied);
    CHECK(renewed->why == "the notes are not in a section of notes");
    const ElfFile after = open(output(change, file));
    const auto index = read_index(after, *find_index(after));
    REQUIRE(index);
    CHECK(index->entries.empty());
    CHECK(!index_contradiction(after, read_probes(after)));
  }
  SECTION("an index of another version is not written") {
    Bytes newer = bytes;
    newer[static_cast<std::size_t>(find_index(file)->offset.value) + 20] = std::byte{2};
    const ElfFile newer_file = open(newer);
    Plan change;
    CHECK(!renew_index(change, newer_file));
    CHECK(!plan(newer_file));
  }
}

TEST_CASE("notes that are gone come back byte for byte", "[index]") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.machine);
    const Library library(kind);
    const Bytes stripped = without_notes(relativized(library.file));
    const ElfFile file = open(stripped);
    REQUIRE(can_restore_from_index(file));
    const auto known = read_index_probes(file);
    REQUIRE(known);
    CHECK(known->probes.size() == 3);
    const auto back = plan_from_index(file);
    INFO((back ? "" : back.error().message));
    REQUIRE(back);
    CHECK(back->fix.refused.empty());
    CHECK(back->probes.size() == 3);
    const Bytes bytes = output(back->fix.plan, file);
    const ElfFile after = open(bytes);
    const Section* notes = after.section(".note.stapsdt");
    REQUIRE(notes != nullptr);
    CHECK((notes->type == SHT_NOTE && notes->flags == 0 && notes->addralign.value == 4));
    const auto contents = after.contents(*notes);
    REQUIRE(contents);
    CHECK(Bytes(contents->begin(), contents->end()) == library.stapsdt);
    CHECK(rules(stripped, bytes).empty());
  }
}

TEST_CASE("a note whose code has changed since does not come back", "[index]") {
  const Library library(kinds().front());
  Bytes stripped = without_notes(relativized(library.file));
  const auto site = static_cast<std::size_t>(open(stripped).offset_of({kText + 2})->value);
  stripped[site] = std::byte{0xc3};
  const ElfFile file = open(stripped);
  const auto back = plan_from_index(file);
  REQUIRE(back);
  CHECK(back->probes.size() - back->fix.removed.size() == 2);
  CHECK(back->fix.removed.size() + back->fix.refused.size() == 1);
}

TEST_CASE("an index of other addresses gives no notes back", "[index]") {
  const Library library(kinds().front());
  Bytes stripped = without_notes(relativized(library.file));
  const ElfFile before = open(stripped);
  const auto at = static_cast<std::size_t>(find_index(before)->offset.value) + 20 + 24;
  stripped[at] ^= std::byte{0x40};
  const ElfFile file = open(stripped);
  const auto back = plan_from_index(file);
  REQUIRE(!back);
  CHECK(back.error().message.starts_with("the index is of other addresses"));
}
