// The records of SystemTap up to 1.3, put together by hand from docs/legacy.md: every form, class
// and byte order, relocations applied, and what a hostile section may hold. What the linkers and
// compilers make of them is tests/live/legacy_test.py's.
#include "libprobe/notes/legacy.hpp"

#include <random>

#include "catch.hpp"
#include "legacy_file.hpp"
#include "libprobe/audit/legacy_probes.hpp"

using namespace reprobe;
using namespace reprobe::test;

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
