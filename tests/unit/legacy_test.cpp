// The records of SystemTap up to 1.3, put together by hand from docs/legacy.md: every form, class
// and byte order, relocations applied, and what a hostile section may hold. What the linkers and
// compilers make of them is tests/live/legacy_test.py's.
#include "libprobe/notes/legacy.hpp"

#include <random>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/legacy_probes.hpp"
#include "libprobe/elf/dynamic_tables.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kText = 0x1000, kProbes = 0x2000, kTable = 0x3000, kDynamic = 0x4000;

// The contents of .probes, word by word as the headers write it.
class Records {
 public:
  explicit Records(ElfBuilder::Kind kind) : kind_(kind) {}

  std::uint64_t word() const { return kind_.is64 ? 8 : 4; }
  std::uint64_t at() const { return kProbes + bytes.size(); }
  void align(std::size_t to) {
    while (bytes.size() % to != 0) bytes.push_back(std::byte{0});
  }
  void number(std::uint64_t value, unsigned width) {
    bytes.resize(bytes.size() + width);
    store_uint(bytes, bytes.size() - width, width, kind_.order, value);
  }
  std::uint64_t text(std::string_view text) {
    align(8);
    const std::uint64_t place = at();
    const Bytes view = bytes_of(text);
    bytes.insert(bytes.end(), view.begin(), view.end());
    bytes.push_back(std::byte{0});
    return place;
  }
  // A slot of 8 bytes; `relocated`: the file has zeros, the dynamic linker writes the value.
  void slot(std::uint64_t value, bool relocated) {
    align(8);
    const bool big32 = !kind_.is64 && kind_.order == std::endian::big;
    if (big32) number(0, 4);
    if (relocated && value != 0) places.emplace_back(at(), value);
    number(relocated && kind_.machine != EM_386 ? 0 : value, static_cast<unsigned>(word()));
    if (!kind_.is64 && !big32) number(0, 4);
  }

  void first(std::uint32_t magic, std::string_view name, std::uint64_t second, bool relocated) {
    const std::uint64_t place = text(name);
    align(4);
    number(magic, 4);
    slot(place, relocated);
    slot(second, relocated && second >= kText);
    number(0, 4);
  }

  void second(std::uint32_t magic, std::string_view operands, std::uint64_t count, std::uint64_t pc,
              std::optional<std::uint64_t> counter, bool relocated) {
    align(8);
    const std::uint64_t start = at(), texts = start + (counter ? 0x38 : 0x30);
    const auto rounded = [](std::uint64_t value) { return (value + 7) / 8 * 8; };
    const std::uint64_t provider = rounded(texts + operands.size() + 1);
    const std::uint64_t name = rounded(provider + sizeof "prov");
    number(magic, 4);
    slot(name, relocated);
    slot(provider, relocated);
    slot(count, false);
    slot(pc == 0 ? 0 : texts, relocated);
    slot(pc, relocated);
    if (counter) slot(*counter, relocated);
    text(operands);
    text("prov");
    text("name");
  }

  Bytes bytes;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;  // relocated words and their values

 private:
  ElfBuilder::Kind kind_;
};

ElfFile opened(Bytes bytes) {
  auto file = ElfFile::open(memory_source(std::move(bytes)));
  REQUIRE(file);
  return std::move(*file);
}

// A file with the section, a text of nops and RELATIVE relocations for the records' words.
Bytes file_with(const ElfBuilder::Kind& kind, const Records& records) {
  ElfBuilder elf(kind);
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = kText,
                                 .bytes = Bytes(64, std::byte{0x90})});
  const auto probes = elf.section({.name = ".probes",
                                   .flags = SHF_ALLOC | SHF_WRITE,
                                   .addr = kProbes,
                                   .align = 8,
                                   .bytes = records.bytes});
  Bytes table, dynamic;
  const unsigned word = kind.is64 ? 8 : 4;
  const auto append = [&](Bytes& to, std::uint64_t value) {
    to.resize(to.size() + word);
    store_uint(to, to.size() - word, word, kind.order, value);
  };
  const bool rela = kind.machine != EM_386;
  const std::uint32_t type = kind.machine == EM_S390 ? 12 : 8;
  for (const auto& [place, value] : records.places) {
    append(table, place);
    append(table, type);
    if (rela) append(table, value);
  }
  for (const auto& [tag, value] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {rela ? DT_RELA : DT_REL, kTable},
           {rela ? DT_RELASZ : DT_RELSZ, table.size()},
           {0, 0}}) {
    append(dynamic, tag);
    append(dynamic, value);
  }
  const auto relocations = elf.section({.name = ".rela.dyn",
                                        .type = rela ? SHT_RELA : SHT_REL,
                                        .flags = SHF_ALLOC,
                                        .addr = kTable,
                                        .align = word,
                                        .bytes = table,
                                        .entsize = (rela ? 3U : 2U) * word});
  const auto entries = elf.section({.name = ".dynamic",
                                    .type = SHT_DYNAMIC,
                                    .flags = SHF_ALLOC | SHF_WRITE,
                                    .addr = kDynamic,
                                    .align = word,
                                    .bytes = dynamic,
                                    .entsize = 2U * word});
  elf.load(PF_R | PF_X, text);
  elf.load(PF_R | PF_W, probes);
  elf.load(PF_R, relocations);
  elf.load(PF_R | PF_W, entries);
  elf.load(PF_R | PF_W, entries, 0, PT_DYNAMIC);
  return elf.build();
}

const std::vector<ElfBuilder::Kind> kKinds{
    {.is64 = true, .machine = EM_X86_64},
    {.is64 = false, .machine = EM_386},
    {.is64 = true, .order = std::endian::big, .machine = EM_S390},
    {.is64 = false, .order = std::endian::big, .machine = EM_S390},
};

}  // namespace

TEST_CASE("legacy: records of every form, class and byte order") {
  const auto kind = kKinds[static_cast<std::size_t>(GENERATE(0, 1, 2, 3))];
  const bool relocated = GENERATE(false, true);
  CAPTURE(kind.is64, kind.machine, relocated);
  Records records(kind);
  records.first(0x31425250, "one", kText + 1, relocated);
  records.first(0x32425250, "two", 3, relocated);
  records.first(0x33425250, "three", 2, relocated);
  records.first(0xbead, "four", 0, relocated);
  records.second(0x32425055, "%rdx %rcx", 2, kText + 2, std::nullopt, relocated);
  records.second(0x32425055, "", 0, kText + 3, kProbes + 0x10, relocated);
  records.second(0x3242504b, "", 4, 0, std::nullopt, relocated);
  const ElfFile file = opened(file_with(kind, records));
  const LegacyScan scan = scan_legacy(file);
  CHECK(scan.findings.empty());
  REQUIRE(scan.records.size() == 7);
  const auto& r = scan.records;
  CHECK(r[0].form == LegacyForm::uprobe1);
  CHECK(r[0].name == "one");
  CHECK(r[0].provider.empty());
  CHECK(r[0].location.value == kText + 1);
  CHECK(r[1].form == LegacyForm::kprobe1);
  CHECK(r[1].count == 3);
  CHECK(r[1].location.value == 0);
  CHECK(r[2].form == LegacyForm::utrace1);
  CHECK(r[2].count == 2);
  CHECK(r[3].form == LegacyForm::utrace1);
  CHECK(r[3].name == "four");
  CHECK(r[4].form == LegacyForm::uprobe2);
  CHECK(r[4].provider == "prov");
  CHECK(r[4].name == "name");
  CHECK(r[4].operands == "%rdx %rcx");
  CHECK(r[4].location.value == kText + 2);
  CHECK(r[4].semaphore.value == 0);
  CHECK(r[4].words.size() == 4);
  CHECK(r[5].operands.empty());
  CHECK(r[5].location.value == kText + 3);
  CHECK(r[5].semaphore.value == kProbes + 0x10);
  CHECK(r[5].words.size() == 5);
  CHECK(r[6].form == LegacyForm::kprobe2);
  CHECK(r[6].count == 4);
  CHECK(r[6].provider == "prov");
  for (const LegacyRecord& record : r) CHECK_FALSE(record.unresolved);
}

TEST_CASE("legacy: operands become arguments of the class's word") {
  Records records(kKinds[0]);
  records.second(0x32425055, "%rdx -8(%rbp,%rax,8) $7", 3, kText, std::nullopt, false);
  records.second(0x32425055, "%rdx", 2, kText + 1, std::nullopt, false);
  records.second(0x32425055, "4@%rdx", 1, kText + 2, std::nullopt, false);
  const ElfFile file = opened(file_with(kKinds[0], records));
  const LegacyScan scan = scan_legacy(file);
  REQUIRE(scan.records.size() == 3);
  CHECK(note_arguments(scan.records[0], file.header()) == "-8@%rdx -8@-8(%rbp,%rax,8) -8@$7");
  CHECK(note_arguments(scan.records[1], file.header()) == std::nullopt);
  CHECK(note_arguments(scan.records[2], file.header()) == std::nullopt);
  ElfHeader narrow = file.header();
  narrow.is64 = false;
  narrow.machine = EM_386;
  CHECK(note_arguments(scan.records[0], narrow) == "-4@%rdx -4@-8(%rbp,%rax,8) -4@$7");
}

TEST_CASE("legacy: words that are distances from themselves") {
  const auto kind = kKinds[static_cast<std::size_t>(GENERATE(0, 1, 2, 3))];
  CAPTURE(kind.is64, kind.machine);
  Records records(kind);
  records.second(0x32425055, "%rdx", 1, kText + 2, kProbes + 0x80, false);
  // By hand: "upb2" and, at each slot, the address minus the slot's own.
  const unsigned word = kind.is64 ? 8 : 4;
  const std::size_t shift = !kind.is64 && kind.order == std::endian::big ? 4 : 0;
  store_uint(records.bytes, 0, 4, kind.order, 0x32627075);
  for (const std::size_t slot : {0x08U, 0x10U, 0x20U, 0x28U, 0x30U}) {
    const std::uint64_t value = load_uint(records.bytes, slot + shift, word, kind.order);
    const std::uint64_t distance = value - (kProbes + slot + shift);
    store_uint(records.bytes, slot + shift, word, kind.order,
               kind.is64 ? distance : distance & 0xffffffffU);
  }
  const LegacyScan scan = scan_legacy(opened(file_with(kind, records)));
  REQUIRE(scan.records.size() == 1);
  CHECK(scan.records[0].self_relative);
  CHECK(scan.records[0].form == LegacyForm::uprobe2);
  CHECK(scan.records[0].name == "name");
  CHECK(scan.records[0].provider == "prov");
  CHECK(scan.records[0].operands == "%rdx");
  CHECK(scan.records[0].location.value == kText + 2);
  CHECK(scan.records[0].semaphore.value == kProbes + 0x80);
}

TEST_CASE("legacy: what no record may be") {
  Records good(kKinds[0]);
  good.second(0x32425055, "%rdx", 1, kText + 2, std::nullopt, false);
  const auto reads = [](const Bytes& bytes) {
    Records records(kKinds[0]);
    records.bytes = bytes;
    return scan_legacy(opened(file_with(kKinds[0], records)));
  };
  REQUIRE(reads(good.bytes).records.size() == 1);
  SECTION("cut anywhere") {
    for (std::size_t size = 1; size < good.bytes.size(); ++size) {
      const Bytes cut(good.bytes.begin(), good.bytes.begin() + static_cast<std::ptrdiff_t>(size));
      CAPTURE(size);
      CHECK(reads(cut).records.empty());
    }
  }
  SECTION("a word that points elsewhere") {
    for (const std::size_t slot : {0x08U, 0x10U, 0x20U}) {
      for (const std::uint64_t value : {std::uint64_t{0}, kText, kProbes + good.bytes.size(),
                                        ~std::uint64_t{0}, kProbes + good.bytes.size() - 1}) {
        Bytes bytes = good.bytes;
        store_uint(bytes, slot, 8, std::endian::little, value);
        CAPTURE(slot, value);
        const LegacyScan scan = reads(bytes);
        CHECK(scan.records.empty());
        CHECK(scan.findings.size() == 1);
      }
    }
  }
  SECTION("the number of a call alone") {
    Bytes bytes(64);
    store_uint(bytes, 16, 4, std::endian::little, 0xbead);
    store_uint(bytes, 24, 8, std::endian::little, kProbes + 40);
    store_uint(bytes, 40, 4, std::endian::little, 0x6261);
    CHECK(reads(bytes).records.empty());
    CHECK(reads(bytes).section == nullptr);
  }
  SECTION("magic numbers all over") {
    Bytes bytes(1 << 20);
    for (std::size_t at = 0; at < bytes.size(); at += 4) {
      store_uint(bytes, at, 4, std::endian::little, 0x32425055);
    }
    const LegacyScan scan = reads(bytes);
    CHECK(scan.records.empty());
    CHECK(scan.findings.size() <= 100);
  }
  SECTION("any bytes") {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
      Bytes bytes = good.bytes;
      for (int i = 0; i < 4; ++i) bytes[random() % bytes.size()] = std::byte(random() & 0xff);
      (void)read_legacy(opened(file_with(kKinds[0], [&] {
        Records records(kKinds[0]);
        records.bytes = bytes;
        return records;
      }())));
    }
  }
}

TEST_CASE("legacy: a file with notes has no records") {
  ElfBuilder elf;
  Records records(elf.kind());
  records.second(0x32425055, "", 0, 0x1000, std::nullopt, false);
  elf.section({.name = ".probes",
               .flags = SHF_ALLOC | SHF_WRITE,
               .addr = kProbes,
               .align = 8,
               .bytes = records.bytes});
  CHECK(read_legacy(opened(elf.build())).scan.records.size() == 1);
  elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = {}});
  CHECK_FALSE(read_legacy(opened(elf.build())).found());
}
