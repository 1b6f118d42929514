// What repairs make of .probes and of the counters in notes.
// For both classes and byte orders.

#include "libprobe/audit/read_probes.hpp"
#include "libprobe/audit/rules.hpp"
#include "repaired_file.hpp"

namespace reprobe::test {

TEST_CASE("semaphore-section: .probes is added behind the counters, before the notes") {
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big);
    Program program(kind);
    program.counters = ".data";
    program.notes = {program.note("one", kData + 2)};
    const auto [fix, bytes] = repair(program.build(), only("semaphore-section"));
    CHECK(rules(fix) == Rules{"semaphore-section"});
    const ElfFile after = open(bytes);
    const Section* probes = after.section(".probes");
    REQUIRE(probes != nullptr);
    CHECK(probes->size == Size{0});
    CHECK(probes->index < after.section(".note.stapsdt")->index);
    CHECK(probes->index > program.text);
    // bcc's formula.
    const std::uint64_t at = kData + 2 - probes->addr.value + probes->offset.value;
    CHECK(FileOffset{at} == after.offset_of(VirtAddr{kData + 2}));
  }
}

TEST_CASE("semaphores: a field that points nowhere is corrected from the symbol, or cleared") {
  struct Case {
    std::uint64_t field;
    bool has_symbol;
    std::uint64_t wanted;
    Rules rules;
  };
  const auto c = GENERATE(values<Case>({
      {2, true, kData + 4, {"semaphore-dangling"}},
      {2, false, 0, {"semaphore-dangling"}},
      {0x7fff0000, false, 0, {"semaphore-dangling"}},
      {kText + 4, false, 0, {"semaphore-dangling"}},
      {0, true, kData + 4, {"semaphore-undefined"}},
      {0, false, 0, {}},
      {kData + 4, true, kData + 4, {}},
      {kData + 2, true, kData + 2, {}},       // a counter, if another one than the symbol's
      {kRodata + 2, false, kRodata + 2, {}},  // somewhere: a debugger can raise it
  }));
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big, c.field, c.has_symbol);
    Program program(kind);
    program.notes = {program.note("one", c.field)};
    if (c.has_symbol) {
      program.symbols = {
          {.name = "p_one_semaphore", .value = kData + 4, .size = 2, .type = STT_OBJECT}};
    }
    FixOptions options;
    options.repairs = RepairChoice::of({}, std::vector<std::string>{"base-delta"}).value();
    const auto [fix, bytes] = repair(program.build(), options);
    CHECK(rules(fix) == c.rules);
    CHECK(read_probes(open(bytes)).probes[0].note.semaphore == VirtAddr{c.wanted});
  }
}

// What audit promises ("fix clears the field") fix does, and then audit has nothing left to say.
TEST_CASE("semaphores: audit and fix have one idea of what points nowhere") {
  struct Case {
    std::uint64_t field;
    bool merged;
    std::string rule;  // of audit, before
    std::uint64_t left;
  };
  constexpr std::uint64_t kLost = 0x90000;
  const auto c = GENERATE(values<Case>({
      {kLost + 2, false, "semaphore-dangling", 0},           // allocated, in no PT_LOAD
      {kText + 4, false, "semaphore-dangling", 0},           // code
      {kText + 4, true, "semaphore-executable", kText + 4},  // merged by a linker script
      {0x7ffe, false, "semaphore-dangling", 0},              // nothing is there
      {kRodata + 2, false, "semaphore-readonly", kRodata + 2},
      {kData + 2, false, "", kData + 2},
  }));
  for (const auto& kind : kinds()) {
    CAPTURE(kind.is64, kind.order == std::endian::big, c.field, c.merged);
    Program program(kind);
    program.merged = c.merged;
    program.unmapped = kLost;
    program.notes = {program.note("one", c.field)};
    const Bytes before = program.build();
    const auto semaphore_rules = [](const Bytes& bytes) {
      std::string found;
      const ElfFile file = open(bytes);
      for (const Finding& finding : audit(file, read_probes(file))) {
        if (finding.rule.starts_with("semaphore-")) found += finding.rule;
      }
      return found;
    };
    CHECK(semaphore_rules(before) == c.rule);
    const auto [fix, bytes] = repair(before);
    CHECK(read_probes(open(bytes)).probes.at(0).note.semaphore == VirtAddr{c.left});
    CHECK(semaphore_rules(bytes) == (c.left == 0 ? "" : c.rule));
  }
}

TEST_CASE("semaphore-conflict: the counter that the symbol names wins") {
  Program program({});
  program.notes = {program.note("one", kData) + program.note("one", kData + 4)};
  SECTION("with the symbol") {
    program.symbols = {
        {.name = "p_one_semaphore", .value = kData + 4, .size = 2, .type = STT_OBJECT}};
    const auto [fix, bytes] = repair(program.build(), only("semaphore-conflict"));
    CHECK(rules(fix) == Rules{"semaphore-conflict"});
    for (const Probe& probe : read_probes(open(bytes)).probes) {
      CHECK(probe.note.semaphore == VirtAddr{kData + 4});
    }
  }
  SECTION("without it nobody knows") {
    const Bytes file = program.build();
    const auto [fix, bytes] = repair(file, only("semaphore-conflict"));
    CHECK(bytes == file);
    REQUIRE(fix.refused.size() == 1);
    CHECK(fix.refused[0].reason == "semaphore-conflict: no symbol tells which counter is right");
  }
}

}  // namespace reprobe::test
