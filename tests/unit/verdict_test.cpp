// Verdicts, note by note: bytes assembled by hand, and what must and must not follow from them.
#include "catch.hpp"
#include "code_bytes.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/note_order.hpp"
#include "libprobe/audit/read_probes.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kText = 0x1000, kBase = 0x8000;
constexpr std::uint64_t kGone = 0x10;  // in no segment: a note there proves that code was dropped

struct Program {
  ElfBuilder::Kind kind{};
  Bytes code{};
  std::vector<NewProbe> probes{};
  bool symbols = true;  // one function over all of the code
  bool base = true;

  void add(std::uint64_t location, std::string name, std::string arguments = "") {
    probes.push_back({.location = location,
                      .base = base ? kBase : 0,
                      .provider = "p",
                      .name = std::move(name),
                      .arguments = std::move(arguments)});
  }

  std::vector<Probe> judge() const {
    ElfBuilder elf(kind);
    const auto text = elf.section(
        {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = kText, .bytes = code});
    elf.load(PF_R | PF_X, text);
    if (base) {
      elf.load(
          PF_R,
          elf.section(
              {.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = kBase, .bytes = Bytes(1)}));
    }
    Bytes notes;
    for (const NewProbe& probe : probes) {
      const Bytes note = elf.stapsdt(probe);
      notes.insert(notes.end(), note.begin(), note.end());
    }
    elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = notes});
    if (symbols) {
      elf.symbol(
          {.name = "f", .value = kText, .size = code.size(), .type = STT_FUNC, .shndx = text});
    }
    const auto file = ElfFile::open(memory_source(elf.build()));
    REQUIRE(file);
    return read_probes(*file).probes;
  }

  // "l", "d", "a" or "?" for each probe.
  std::string verdicts() const {
    std::string all;
    for (const Probe& probe : judge()) {
      const std::string word = to_string(probe.verdict);
      all += word == "unknown" ? '?' : word[0];
    }
    return all;
  }
};

}  // namespace

TEST_CASE("a nop among dropped probes is in doubt, and not dangling", "[verdict]") {
  // Forty times: mov $1,%eax; nop. Sixteen notes on each side point into a mov.
  Program program;
  for (int i = 0; i < 40; ++i) program.code = program.code + hex("b801000000 90");
  program.add(kGone, "far");
  const auto add = [&](std::uint64_t i) { program.add(kText + 6 * i + 1, std::to_string(i)); };
  for (std::uint64_t i = 0; i < 16; ++i) add(i);
  program.add(kText + 6 * 16 + 5, "nop");
  for (std::uint64_t i = 17; i < 33; ++i) add(i);
  CHECK(program.verdicts() == std::string(17, 'd') + "a" + std::string(16, 'd'));
}

TEST_CASE("what stands on no nop is dangling only out of order", "[verdict]") {
  // 0: nop; 1: mov; 3: nop; 4: mov; 6: nop; 7: ret
  Program program{.code = hex("90 89c0 90 89c0 90 c3")};
  SECTION("in order, code was dropped") {
    program.add(kGone, "far");
    program.add(kText, "one");
    program.add(kText + 1, "odd");
    program.add(kText + 3, "two");
    CHECK(program.verdicts() == "dlal");
  }
  SECTION("out of order, but near: hand-written notes may stand so") {
    program.add(kGone, "far");
    program.add(kText, "one");
    program.add(kText + 3, "two");
    program.add(kText + 1, "odd");
    program.add(kText + 6, "three");
    CHECK(program.verdicts() == "dllal");
  }
  SECTION("out of order and far away, code was dropped") {
    // The same instructions again, 0x2000 further on.
    program.code = hex("90 89c0 90 89c0 90") + Bytes(0x2000 - 7, std::byte{0xc3}) + program.code;
    program.add(kGone, "far");
    program.add(kText + 0x2000, "one");
    program.add(kText + 0x2003, "two");
    program.add(kText + 1, "odd");
    program.add(kText + 0x2006, "three");
    CHECK(program.verdicts() == "dlldl");
    program.probes.erase(program.probes.begin());
    CHECK(program.verdicts() == "llal");
  }
  SECTION("out of order, and nothing shows that code was dropped") {
    program.add(kText, "one");
    program.add(kText + 3, "two");
    program.add(kText + 1, "odd");
    CHECK(program.verdicts() == "lla");
    program.base = false;
    for (NewProbe& probe : program.probes) probe.base = 0;
    CHECK(program.verdicts() == "lla");
  }
  SECTION("no live probe to compare with") {
    program.add(kGone, "far");
    program.add(kText + 1, "odd");
    program.add(kText + 4, "even");
    CHECK(program.verdicts() == "daa");
  }
  SECTION("a jump there may be another tool's") {
    program.code = hex("90 eb00 90 89c0 90") + Bytes(0x2000 - 7, std::byte{0xc3}) + program.code;
    program.add(kGone, "far");
    program.add(kText + 0x2003, "two");
    program.add(kText + 1, "patched");
    program.add(kText + 0x2006, "three");
    CHECK(program.verdicts() == "dlal");
  }
}

TEST_CASE("a nop out of order is in doubt where code was dropped", "[verdict]") {
  Program program{.code = hex("90 89c0 90 89c0 90 89c0 90 c3")};
  program.add(kGone, "far");
  program.add(kText + 3, "one");
  program.add(kText + 6, "two");
  program.add(kText, "low");
  program.add(kText + 9, "three");
  CHECK(program.verdicts() == "dllal");
  program.probes.erase(program.probes.begin());
  CHECK(program.verdicts() == "llll");
}

TEST_CASE("inside another instruction, and certainly so", "[verdict]") {
  // 0: nop; 1: mov $0x90909090,%eax; 6: ret
  Program program{.code = hex("90 b890909090 c3")};
  program.add(kGone, "far");
  program.add(kText, "one");
  program.add(kText + 2, "inside");
  CHECK(program.verdicts() == "dld");
  program.symbols = false;
  CHECK(program.verdicts() == "daa");
  program.symbols = true;
  program.probes.erase(program.probes.begin());
  CHECK(program.verdicts() == "la");
}

TEST_CASE("nops in front of a probe", "[verdict]") {
  Program program;
  program.add(kGone, "far");
  SECTION("room for a patch at the entry, and the probe behind it") {
    program.code = hex("9090909090 90 89c0 c3");
    program.add(kText + 5, "entry");
    CHECK(program.verdicts() == "dl");
  }
  SECTION("behind endbr64") {
    program.code = hex("f30f1efa 90909090 90 89c0 c3");
    program.add(kText + 8, "entry");
    CHECK(program.verdicts() == "dl");
  }
  SECTION("inside such a row") {
    program.code = hex("9090909090 90 89c0 c3");
    program.add(kText + 3, "inside");
    CHECK(program.verdicts() == "da");
  }
  SECTION("a row in the middle of the function") {
    program.code = hex("89c0 90909090 90 89c0 c3");
    program.add(kText + 6, "row");
    CHECK(program.verdicts() == "da");
  }
  SECTION("where nothing was dropped no row speaks against a probe") {
    program.probes.clear();
    program.code = hex("89c0 90909090 90 89c0 c3");
    program.add(kText + 3, "first");
    program.add(kText + 6, "last");
    CHECK(program.verdicts() == "ll");
  }
}

TEST_CASE("two probes at one nop", "[verdict]") {
  Program program{.code = hex("90 89c0 90 89c0 90 c3")};
  program.add(kGone, "far");
  program.add(kText, "one", "-4@%edi");
  SECTION("folded code has the same operands") {
    program.add(kText, "two", "4@%edi");
    program.add(kText + 3, "three");
    CHECK(program.verdicts() == "dlll");
    const auto probes = program.judge();
    CHECK(probes[1].alias_count == 1);
    CHECK(probes[2].alias_of == 1);
    CHECK(probes[0].alias_count == 0);
  }
  SECTION("other operands: one of them is not in the file") {
    program.add(kText, "two", "4@%esi");
    program.add(kText + 3, "three");
    CHECK(program.verdicts() == "daal");
  }
  SECTION("the one that is out of order casts no doubt on the other") {
    program.add(kText + 3, "three");
    program.add(kText, "two", "4@%esi");
    program.add(kText + 6, "four");
    CHECK(program.verdicts() == "dllal");
  }
}

TEST_CASE("every machine's nops, and nops of another choice, are sites", "[verdict]") {
  struct Case {
    std::uint16_t machine;
    bool is64;
    const char* code;  // the nop, and an instruction behind it
    const char* kind;
    std::uint64_t size;
  };
  const auto nop = GENERATE(
      Case{EM_X86_64, true, "90 c3", "nop", 1}, Case{EM_X86_64, true, "6690 c3", "other", 2},
      Case{EM_X86_64, true, "0f1f00 c3", "other", 3},
      Case{EM_X86_64, true, "0f1f4000 c3", "other", 4},
      Case{EM_X86_64, true, "0f1f440000 c3", "nop5", 5},
      Case{EM_X86_64, true, "660f1f440000 c3", "other", 6},
      Case{EM_X86_64, true, "0f1f8000000000 c3", "other", 7},
      Case{EM_X86_64, true, "0f1f840000000000 c3", "other", 8},
      Case{EM_X86_64, true, "660f1f840000000000 c3", "other", 9},
      Case{EM_386, false, "6690 c3", "other", 2},
      Case{EM_AARCH64, true, "1f2003d5 c0035fd6", "nop", 4},
      Case{EM_ARM, false, "00f020e3 1eff2fe1", "nop", 4},
      Case{EM_ARM, false, "0000a0e1 1eff2fe1", "nop", 4},
      Case{EM_RISCV, true, "0100 8280", "nop", 2}, Case{EM_RISCV, true, "13000000 8280", "nop", 4},
      Case{EM_PPC64, true, "00000060 2000804e", "nop", 4});
  CAPTURE(nop.machine, nop.code);
  Program program{.kind = {.is64 = nop.is64, .machine = nop.machine}, .code = hex(nop.code)};
  program.add(kGone, "far");
  program.add(kText, "site");
  const auto probes = program.judge();
  CHECK(to_string(probes[1].verdict) == std::string("live"));
  CHECK(site_kind(probes[1]) == nop.kind);
  CHECK(probes[1].facts.nop.size == nop.size);
}

TEST_CASE("the order of notes", "[verdict]") {
  const auto orders = [](const std::vector<std::uint64_t>& locations) {
    std::vector<Probe> probes(locations.size());
    for (std::size_t i = 0; i < probes.size(); ++i) {
      probes[i].note.location = VirtAddr{locations[i]};
      probes[i].facts.place = Place::executable;
      probes[i].facts.has_bytes = true;
      probes[i].facts.nop = {NopKind::nop, 1};
    }
    std::string all;
    for (const NoteOrder order : find_note_order(probes, std::vector<bool>(probes.size()),
                                                 std::vector<DeadRun>(probes.size()))) {
      all += "?iof"[static_cast<int>(order)];
    }
    return all;
  };
  CHECK(orders({1, 2, 3}) == "iii");
  CHECK(orders({1, 1, 1}) == "iii");
  CHECK(orders({10, 20, 5, 30}) == "iioi");
  CHECK(orders({10, 90, 20, 30}) == "ioii");
  CHECK(orders({20, 10}) == "io");  // what is dropped is too low
  CHECK(orders({0x5000, 0x5010, 0x1000, 0x5020}) == "iifi");
  CHECK(orders({50, 40, 30, 20, 10}) == "?????");
  CHECK(orders({}).empty());
}
