// plan_upgrade() over small files, and what verify makes of each byte that it changes.
#include <random>
#include <set>

#include "catch.hpp"
#include "legacy_file.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/planned_source.hpp"
#include "libprobe/rewrite/legacy/drop_relocations.hpp"
#include "libprobe/rewrite/legacy/upgrade.hpp"
#include "libprobe/verify/compare.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

Records two_records(const ElfBuilder::Kind& kind, bool counters) {
  Records records(kind);
  records.first(0x31425250, "old", kText + 8, true);
  records.second(0x32425055, "%ax", 1, kText + 4,
                 counters ? std::optional(kProbes + 0x10) : std::nullopt, true);
  return records;
}

Bytes upgraded(const ElfFile& file) {
  const auto plan = plan_upgrade(file, read_legacy(file), {});
  REQUIRE(plan);
  CHECK(plan->fix.refused.empty());
  const auto bytes = apply(plan->fix.plan, file.source());
  REQUIRE(bytes);
  return *bytes;
}

}  // namespace

TEST_CASE("upgrade: the records get notes and need no relocation") {
  const auto kind = kKinds[static_cast<std::size_t>(GENERATE(0, 1))];
  const bool counters = GENERATE(false, true);
  CAPTURE(kind.is64, kind.machine, counters);
  const ElfFile before = opened(file_with(kind, two_records(kind, counters)));
  const Bytes result = upgraded(before);
  const ElfFile after = opened(result);
  CHECK(compare(before, after, {}).empty());
  const ProbeFile probes = read_probes(after);
  REQUIRE(probes.probes.size() == 2);
  CHECK(probes.probes[0].note.provider == "legacy");
  CHECK(probes.probes[0].note.name == "old");
  CHECK(probes.probes[0].site.value == kText + 8);
  CHECK(probes.probes[1].note.provider == "prov");
  CHECK(probes.probes[1].note.arguments == (kind.is64 ? "-8@%ax" : "-4@%ax"));
  CHECK(probes.probes[1].semaphore.value == (counters ? kProbes + 0x10 : 0));
  CHECK(((after.section(".probes")->flags & SHF_WRITE) != 0) == counters);
  for (const DynamicTable& table : dynamic_tables(after)) CHECK(table.bytes.empty());
  for (const LegacyRecord& record : scan_legacy(after).records) CHECK(record.self_relative);
  const auto again = plan_upgrade(after, read_legacy(after), {});
  REQUIRE(again);
  CHECK(again->fix.plan.empty());
}

TEST_CASE("upgrade: verify sees every byte that is not as planned") {
  const auto kind = kKinds[static_cast<std::size_t>(GENERATE(0, 1))];
  CAPTURE(kind.is64);
  const ElfFile before = opened(file_with(kind, two_records(kind, true)));
  const Bytes result = upgraded(before);
  const Bytes old = [&] {
    const auto view = before.source().slice(FileOffset{0}, Size{before.source().size()}, "all");
    return Bytes(view->begin(), view->end());
  }();
  std::mt19937 random(3);
  for (std::size_t at = 0; at < result.size(); ++at) {
    const bool changed = at >= old.size() || old[at] != result[at];
    if (!changed && random() % 64 != 0) continue;
    Bytes wrong = result;
    wrong[at] ^= std::byte(1U << random() % 8);
    const auto file = ElfFile::open(memory_source(wrong));
    CAPTURE(at);
    if (file) CHECK_FALSE(compare(before, *file, {}).empty());
    if (!changed || at >= old.size()) continue;
    wrong = result;
    wrong[at] = old[at];
    const auto half = ElfFile::open(memory_source(wrong));
    if (half) CHECK_FALSE(compare(before, *half, {}).empty());
  }
}

TEST_CASE("upgrade: what is refused as a whole") {
  Records records = two_records(kKinds[0], false);
  SECTION("a word of another module") {
    // R_X86_64_64 against a symbol that nothing defines.
    Bytes bytes = file_with(kKinds[0], records);
    const ElfFile file = opened(bytes);
    const auto offset = file.section(".rela.dyn")->offset.value;
    // The second entry writes the first record's place.
    store_uint(bytes, offset + 24 + 8, 8, std::endian::little, (std::uint64_t{1} << 32) | 1);
    const ElfFile wrong = opened(bytes);
    const auto plan = plan_upgrade(wrong, read_legacy(wrong), {});
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code == ErrorCode::refused);
  }
  SECTION("a record that cannot be read is named, and stays") {
    records.align(8);
    const std::size_t third = records.bytes.size();
    records.second(0x32425055, "", 0, kText + 5, std::nullopt, false);
    REQUIRE(load_uint(records.bytes, third, 4, std::endian::little) == 0x32425055);
    store_uint(records.bytes, third + 8, 8, std::endian::little, 0);
    const ElfFile file = opened(file_with(kKinds[0], records));
    const auto plan = plan_upgrade(file, read_legacy(file), {});
    REQUIRE(plan);
    REQUIRE(plan->fix.refused.size() == 1);
    CHECK(plan->fix.refused[0].reason.starts_with("legacy-unreadable"));
    CHECK(plan->probes.size() == 2);
  }
  SECTION("the table of relocations is not its section") {
    Bytes bytes = file_with(kKinds[0], records);
    const ElfFile file = opened(bytes);
    const auto offset = file.section(".dynamic")->offset.value;
    const auto size = file.section(".rela.dyn")->size.value;
    store_uint(bytes, offset + 24, 8, std::endian::little, size + 24);
    const ElfFile wrong = opened(bytes);
    const auto plan = plan_upgrade(wrong, read_legacy(wrong), {});
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code == ErrorCode::refused);
  }
}

// Random places, encoded by hand as pairs of an address and a bitmap.
TEST_CASE("upgrade: what is left of DT_RELR") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> places;
    Bytes table;
    const auto append = [&](std::uint64_t value) {
      table.resize(table.size() + 8);
      store_uint(table, table.size() - 8, 8, std::endian::little, value);
    };
    std::uint64_t at = 0x8000;
    for (int i = 0; i < 6; ++i) {
      at += 8 * (random() % 3);
      append(at);
      places.push_back(at);
      at += 8;
      for (auto more = random() % 3; more > 0; --more, at += 63 * 8) {
        const std::uint64_t bitmap = (std::uint64_t{random()} << 32 | random()) | 1;
        append(bitmap);
        for (unsigned bit = 1; bit < 64; ++bit) {
          if ((bitmap >> bit & 1) != 0) places.push_back(at + 8 * (bit - 1));
        }
      }
    }
    std::set<std::uint64_t> gone;
    std::vector<std::uint64_t> left;
    for (const std::uint64_t place : places) {
      if (random() % 3 == 0) {
        gone.insert(place);
      } else {
        left.push_back(place);
      }
    }
    ElfBuilder elf;
    Bytes dynamic(48);
    const std::uint64_t entries[] = {DT_RELR, kTable, DT_RELRSZ, table.size(), 0, 0};
    for (std::size_t i = 0; i < 6; ++i) {
      store_uint(dynamic, 8 * i, 8, std::endian::little, entries[i]);
    }
    const auto relr = elf.section({.name = ".relr.dyn",
                                   .type = SHT_RELR,
                                   .flags = SHF_ALLOC,
                                   .addr = kTable,
                                   .align = 8,
                                   .bytes = table,
                                   .entsize = 8});
    const auto section = elf.section({.name = ".dynamic",
                                      .type = SHT_DYNAMIC,
                                      .flags = SHF_ALLOC | SHF_WRITE,
                                      .addr = kDynamic,
                                      .align = 8,
                                      .bytes = dynamic});
    elf.load(PF_R, relr);
    elf.load(PF_R | PF_W, section);
    elf.load(PF_R | PF_W, section, 0, PT_DYNAMIC);
    const ElfFile file = opened(elf.build());
    auto headers = SectionTable::of(file);
    REQUIRE(headers);
    Plan plan;
    const auto dropped = drop_relocations(plan, *headers, file, gone);
    if (!dropped) {  // it may take more words than there were
      CHECK(dropped.error().code == ErrorCode::refused);
      continue;
    }
    CHECK(dropped->count == gone.size());
    REQUIRE(headers->write(plan));
    const auto source = planned_source(file.source(), plan);
    const auto after = ElfFile::open(source);
    REQUIRE(after);
    std::vector<std::uint64_t> found;
    for (const DynamicTable& each : dynamic_tables(*after)) {
      for_each_relocation(*after, each, [&](const DynamicRelocation& relocation) {
        found.push_back(relocation.place.value);
      });
    }
    CHECK(found == left);
    CHECK(after->section(".relr.dyn")->size.value <= table.size());
  }
}
