// Rules about the file: base, order of sections, build-id, deleted notes.
#include "audit_file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kCounters = AuditFile::kCounters;

AuditFile with_probe() {
  AuditFile file;
  file.probes = {{.location = 0x1000, .semaphore = kCounters, .provider = "p", .name = "one"}};
  return file;
}

}  // namespace

TEST_CASE("nothing is found in a healthy file", "[audit]") {
  CHECK(with_probe().found() == Lines{});
  AuditFile none;
  none.notes = false;
  none.counters = ".other";
  CHECK(none.found() == Lines{});
}

// Tried with perf 6.1: --add succeeds for 2, 8, 16 and 20 bytes, `perf list sdt` shows the last
// two.
TEST_CASE("build-ids that perf does not take", "[audit]") {
  AuditFile file = with_probe();
  const auto [bytes, refused] =
      GENERATE(std::pair<std::size_t, bool>{0, true}, std::pair<std::size_t, bool>{2, true},
               std::pair<std::size_t, bool>{8, true}, std::pair<std::size_t, bool>{15, true},
               std::pair<std::size_t, bool>{16, false}, std::pair<std::size_t, bool>{20, false});
  file.build_id = bytes;
  CAPTURE(bytes);
  CHECK(file.found() == (refused ? Lines{"warning build-id-short"} : Lines{}));
  file.probes.clear();
  file.counters = ".other";
  CHECK(file.found() == Lines{});  // no probe, no matter
}

// bcc_elf.c, listprobes: to the first code, on to .probes, on to the notes.
TEST_CASE("notes before .probes in the section header table", "[audit]") {
  AuditFile file = with_probe();
  file.notes_first = true;
  CHECK(file.found() == Lines{"error section-order"});
  // Without .probes bcc starts over for the notes; it finds them, and no counter.
  file.counters = ".mine";
  CHECK(file.found() == Lines{"error semaphore-section p:one"});
  file.probes[0].semaphore = 0;
  CHECK(file.found() == Lines{});
}

TEST_CASE("a base that misleads perf", "[audit]") {
  AuditFile file = with_probe();
  // The builder puts it at file offset 0x2000.
  file.base_address = 0x22000;
  CHECK(file.found() == Lines{"error base-delta"});
  // A dead probe misleads nobody more.
  file.probes[0].location = 0x10;
  file.probes[0].semaphore = 0;
  CHECK(file.found() == Lines{"error dangling p:one"});
}

TEST_CASE("counters without notes", "[audit]") {
  AuditFile file;
  file.notes = false;
  SECTION("every section that is not loaded is gone") {
    file.comment = false;
    CHECK(file.found() == Lines{"warning notes-stripped"});
  }
  SECTION("others are there: perhaps there never were any") {
    CHECK(file.found() == Lines{"warning notes-stripped"});
  }
  SECTION("a symbol of a counter's size") {
    file.counters = ".data1";
    file.symbols = {
        {.name = "p_one_semaphore", .value = kCounters, .size = 2, .type = STT_OBJECT, .shndx = 3}};
    CHECK(file.found() == Lines{"warning notes-stripped"});
    file.symbols[0].size = 32;  // a sem_t
    CHECK(file.found() == Lines{});
  }
  SECTION("records of SystemTap 1.3 are no counters") {
    const std::uint32_t magic =
        GENERATE(0x31425250U, 0x32425250U, 0x33425250U, 0x32425055U, 0x3242504bU);
    file.comment = false;
    file.counter_bytes = ElfBuilder(file.kind).number(std::uint64_t{magic} << 32, 8);
    CHECK(file.found() == Lines{});
  }
  SECTION("an object is no program") {
    file.kind.type = ET_REL;
    CHECK(file.found() == Lines{});
  }
}

TEST_CASE("a debug file says that it cannot tell", "[audit]") {
  AuditFile file = with_probe();
  ElfBuilder elf;
  elf.section({.name = ".text",
               .type = SHT_NOBITS,
               .flags = SHF_ALLOC | SHF_EXECINSTR,
               .addr = 0x1000,
               .size = 0x100});
  elf.section(
      {.name = ".stapsdt.base", .type = SHT_NOBITS, .flags = SHF_ALLOC, .addr = 0x2000, .size = 1});
  elf.section({.name = ".probes",
               .type = SHT_NOBITS,
               .flags = SHF_ALLOC | SHF_WRITE,
               .addr = kCounters,
               .size = 2});
  file.add_notes(elf);
  elf.segment({.flags = PF_R | PF_X, .vaddr = 0x1000, .memsz = 0x100});
  elf.segment({.flags = PF_R | PF_W, .vaddr = kCounters, .memsz = 2});
  CHECK(AuditFile::found_in(elf.build()) == Lines{"note debug-file"});
}
