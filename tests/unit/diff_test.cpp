// What diff() calls removed, added and changed. The expected answers follow from the notes that
// each test writes down itself.
#include "libprobe/audit/diff.hpp"

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/audit/read_probes.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

struct Kind {
  bool is64;
  std::endian order;
  std::uint16_t machine;
  Bytes nop;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kAll{
      {true, std::endian::little, EM_X86_64, bytes_of({0x90})},
      {false, std::endian::little, EM_386, bytes_of({0x90})},
      {true, std::endian::little, EM_AARCH64, bytes_of({0x1f, 0x20, 0x03, 0xd5})},
      {true, std::endian::big, EM_PPC64, bytes_of({0x60, 0x00, 0x00, 0x00})},
      {true, std::endian::big, EM_S390, bytes_of({0x07, 0x00})}};
  return kAll;
}

struct Wanted {
  std::string name;
  std::string arguments;
  bool semaphore{};
  bool dead{};  // its location lies in no section
};

// A library whose code is nothing but nops from `text` on; each probe takes the next one.
Bytes library(const Kind& kind, std::uint64_t text, const std::vector<Wanted>& probes,
              bool debug_file = false) {
  ElfBuilder elf({.is64 = kind.is64, .order = kind.order, .machine = kind.machine});
  Bytes code, notes;
  for (const Wanted& probe : probes) {
    const std::uint64_t site = probe.dead ? code.size() : text + code.size();
    const Bytes note = elf.stapsdt({.location = site,
                                    .base = 0x300,
                                    .semaphore = probe.semaphore ? 0x9000U : 0U,
                                    .provider = "p",
                                    .name = probe.name,
                                    .arguments = probe.arguments});
    notes.insert(notes.end(), note.begin(), note.end());
    for (int i = 0; i < 4; ++i) code.insert(code.end(), kind.nop.begin(), kind.nop.end());
  }
  const std::uint64_t size = code.size();
  const auto base = elf.section(
      {.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = 0x300, .bytes = bytes_of({0})});
  const auto section = elf.section({.name = ".text",
                                    .type = debug_file ? SHT_NOBITS : SHT_PROGBITS,
                                    .flags = SHF_ALLOC | SHF_EXECINSTR,
                                    .addr = text,
                                    .align = 16,
                                    .bytes = debug_file ? Bytes{} : code,
                                    .size = size});
  const auto counters = elf.section({.name = ".probes",
                                     .flags = SHF_ALLOC | SHF_WRITE,
                                     .addr = 0x9000,
                                     .align = 2,
                                     .bytes = bytes_of({0, 0})});
  elf.section({.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = notes});
  elf.load(PF_R, base);
  if (!debug_file) elf.load(PF_R | PF_X, section);
  elf.load(PF_R | PF_W, counters);
  return elf.build();
}

ProbeSurface surface_of(Bytes bytes) {
  const auto file = ElfFile::open(memory_source(std::move(bytes)));
  REQUIRE(file);
  ProbeSurface surface;
  for (const Probe& probe : read_probes(*file).probes) surface.add(probe);
  return surface;
}

ProbeSurface surface_of(const std::vector<Wanted>& probes) {
  return surface_of(library(kinds().front(), 0x1000, probes));
}

std::vector<std::string> names(const std::vector<NameDifference>& list) {
  std::vector<std::string> result;
  for (const NameDifference& difference : list) {
    CHECK(difference.provider == "p");
    result.push_back(difference.name);
  }
  return result;
}

// "r:..." removed, "a:..." added, "c:..." changed, "n:..." another number of sites
std::vector<std::string> shown(const ProbeDifferences& differences) {
  std::vector<std::string> result;
  for (const auto& [mark, list] :
       {std::pair{"r:", &differences.removed}, std::pair{"a:", &differences.added},
        std::pair{"c:", &differences.changed}, std::pair{"n:", &differences.site_count}}) {
    for (const std::string& name : names(*list)) result.push_back(mark + name);
  }
  const bool only_notes =
      std::ranges::all_of(result, [](const std::string& line) { return line.starts_with("n:"); });
  CHECK(differences.none() == only_notes);
  return result;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("diff: addresses, registers and order do not matter") {
  const std::vector<Wanted> before{
      {"one", "-4@%edi 8@%rsi"}, {"two", ""}, {"three", "8@-16(%rbp)", true}};
  const std::vector<Wanted> after{
      {"three", "8@%rax", true}, {"one", "-4@$7 8@8(%rsp,%rdx,4)"}, {"two", ""}};
  for (const Kind& a : kinds()) {
    for (const Kind& b : kinds()) {
      CAPTURE(a.machine, b.machine);
      const auto result =
          diff(surface_of(library(a, 0x1000, before)), surface_of(library(b, 0x2340, after)));
      CHECK(shown(result).empty());
      CHECK(result.same == 3);
    }
  }
}

TEST_CASE("diff: removed and added names, each once and sorted") {
  const auto result = diff(surface_of({{"z", ""}, {"b", "4@%eax"}, {"z", ""}, {"stays", ""}}),
                           surface_of({{"stays", ""}, {"y", ""}, {"a", ""}}));
  CHECK(shown(result) == Lines{"r:b", "r:z", "a:a", "a:y"});
  CHECK(result.same == 1);
  REQUIRE(result.removed.size() == 2);
  CHECK(sites_of(result.removed[1].before) == 2);
  CHECK(result.removed[1].after.empty());
}

TEST_CASE("diff: names of one spelling and two providers are two probes") {
  ProbeSurface a, b;
  Probe probe;
  probe.verdict = Verdict::live;
  probe.note.provider = "p:q";
  probe.note.name = "n";
  a.add(probe);
  probe.note.provider = "p";
  probe.note.name = "q:n";
  b.add(probe);
  const auto result = diff(a, b);
  CHECK(result.removed.size() == 1);
  CHECK(result.added.size() == 1);
}

TEST_CASE("diff: what makes a probe changed") {
  struct Case {
    Wanted before, after;
    bool changed;
  };
  const std::vector<Case> cases{{{"x", "4@%eax"}, {"x", "4@%eax 4@%ebx"}, true},
                                {{"x", "4@%eax"}, {"x", ""}, true},
                                {{"x", "4@%eax"}, {"x", "-4@%eax"}, true},
                                {{"x", "4@%eax"}, {"x", "8@%rax"}, true},
                                {{"x", "8@%rax"}, {"x", "8f@%xmm0"}, true},
                                {{"x", "8@%rax"}, {"x", "%rax"}, true},
                                {{"x", "4@%eax 8@%rax"}, {"x", "8@%rax 4@%eax"}, true},
                                {{"x", "", true}, {"x", ""}, true},
                                {{"x", ""}, {"x", "", true}, true},
                                {{"x", "%rax"}, {"x", "%rbx"}, false},
                                {{"x", "4@%eax"}, {"x", "4@(%rbx)"}, false},
                                {{"x", "4@$1", true}, {"x", "4@$2", true}, false}};
  for (const Case& c : cases) {
    CAPTURE(c.before.arguments, c.after.arguments, c.before.semaphore, c.after.semaphore);
    const auto result = diff(surface_of({c.before}), surface_of({c.after}));
    CHECK(shown(result) == (c.changed ? Lines{"c:x"} : Lines{}));
    CHECK(result.same == (c.changed ? 0 : 1));
    if (!c.changed) continue;
    const auto replaced = replaced_signature(result.changed.front());
    REQUIRE(replaced);
    CHECK(replaced->first.semaphore == c.before.semaphore);
    CHECK(replaced->second.semaphore == c.after.semaphore);
    CHECK(replaced->first != replaced->second);
  }
}

TEST_CASE("diff: another number of sites is no change, another signature among them is one") {
  const Wanted narrow{"x", "4@%eax"}, wide{"x", "8@%rax"}, none{"x", ""};
  struct Case {
    std::vector<Wanted> before, after;
    Lines expected;
  };
  const std::vector<Case> cases{
      {{narrow}, {narrow, narrow, narrow}, {"n:x"}},
      {{narrow, narrow, wide}, {wide, narrow}, {"n:x"}},
      {{narrow, narrow, wide}, {narrow, wide, wide}, {}},
      {{narrow, wide}, {narrow}, {"c:x"}},
      {{narrow}, {narrow, wide}, {"c:x"}},
      {{narrow, wide}, {narrow, none}, {"c:x"}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    const auto result = diff(surface_of(cases[i].before), surface_of(cases[i].after));
    CHECK(shown(result) == cases[i].expected);
    // One that went and one that came: only the last.
    if (!result.changed.empty())
      CHECK(replaced_signature(result.changed[0]).has_value() == (i == 5));
  }
}

TEST_CASE("diff: dangling probes are left out, unknown ones are not") {
  const std::vector<Wanted> whole{{"here", "4@%eax"}, {"gone", "8@%rax"}};
  const std::vector<Wanted> dead{{"here", "4@%eax"}, {"gone", "8@%rax", false, true}};
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.machine);
    const ProbeSurface damaged = surface_of(library(kind, 0x1000, dead));
    CHECK(damaged.dangling() == 1);
    CHECK(shown(diff(surface_of(library(kind, 0x1000, whole)), damaged)) == Lines{"r:gone"});
    const ProbeSurface debug = surface_of(library(kind, 0x1000, whole, true));
    CHECK(debug.dangling() == 0);
    CHECK(shown(diff(surface_of(library(kind, 0x1000, whole)), debug)).empty());
  }
}
