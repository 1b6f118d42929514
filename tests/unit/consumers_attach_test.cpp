// Where each consumer attaches, and which notes take their siblings with them.
#include "consumers_file.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

NewProbe note(std::uint64_t location, std::string name, std::string arguments = {}) {
  return {.location = location,
          .base = ProgramBuilder::kBase,
          .provider = "demo",
          .name = std::move(name),
          .arguments = std::move(arguments)};
}

}  // namespace

TEST_CASE("a dangling note takes its live namesakes with it") {
  ProgramBuilder program;
  program.probes = {note(0x1000, "a"), note(0x4, "a"), note(0x1001, "b")};
  const Judged file = program.judge();
  REQUIRE(file.probes.probes[1].verdict == Verdict::dangling);
  for (const std::string name : {"libbpf", "libbpf-1.1", "bpftrace", "lttng"}) {
    CAPTURE(name);
    CHECK(file.failures(name, 0) == "attach:sibling-dangling");
    CHECK(file.failures(name, 1).empty());
    CHECK(file.failures(name, 2).empty());
    CHECK(file.of(name).ok == 1);
    CHECK(file.of(name).fail == 1);
  }
  // bcc has dropped a location below the code before it groups.
  CHECK(file.failures("bcc", 0).empty());
  CHECK(file.failures("gdb", 1) == "dangling:dangling-listed");
}

TEST_CASE("a dangling location above the code rolls bcc's probe back") {
  ProgramBuilder program;
  program.probes = {note(0x1000, "a"), note(0x9000, "a")};
  const Judged file = program.judge();
  REQUIRE(file.probes.probes[1].verdict == Verdict::dangling);
  CHECK(file.failures("bcc", 0) == "attach:sibling-dangling");
  CHECK(file.failures("bpftrace-0.17", 0) == "attach:sibling-dangling");
  CHECK(file.failures("perf", 0).empty());
  CHECK(file.failures("perf", 1) == "dangling:dangling-attached");
}

TEST_CASE("an argument that libbpf cannot read refuses the probe's other sites") {
  ProgramBuilder program;
  program.probes = {note(0x1000, "a", "8@%rax"), note(0x1001, "a", "8@%xmm0")};
  const Judged file = program.judge();
  CHECK(file.failures("libbpf", 1) == "argument:argument-register");
  CHECK(file.failures("libbpf", 0) == "attach:sibling");
  CHECK(file.of("libbpf").failures.at(1).argument == 1);
  CHECK(file.failures("bcc", 0).empty());
  CHECK(file.failures("bcc", 1) == "argument:argument-register");
  CHECK(file.failures("gdb", 1).empty());
}

// Tried with perf 6.1 on Linux 6.18: "Argument type or name is different from existing probe".
TEST_CASE("perf takes no probe whose sites have different arguments") {
  struct Case {
    const char* first;
    const char* second;
    bool taken;
  };
  for (const auto& [first, second, taken] :
       {Case{"4@%eax", "4@-8(%rbp)", true}, Case{"4@%eax", "4@%eax 4@%ebx", false},
        Case{"4@%eax", "-4@%eax", false}, Case{"4@%eax", "8@%rax", false}}) {
    CAPTURE(first, second);
    ProgramBuilder program;
    program.probes = {note(0x1000, "a", first), note(0x1001, "a", second)};
    const Judged file = program.judge();
    for (const std::size_t probe : {0U, 1U}) {
      CHECK(file.failures("perf", probe) == (taken ? "" : "attach:arguments-differ"));
    }
    CHECK(file.failures("bpftrace", 0).empty());
  }
}

TEST_CASE("more argument strings than libbpf's map holds") {
  const std::size_t specs = GENERATE(256U, 257U);
  ProgramBuilder program;
  program.code = Bytes(specs, std::byte{0x90});
  program.code.push_back(std::byte{0xc3});
  program.probes.clear();
  for (std::size_t i = 0; i < specs; ++i) {
    program.probes.push_back(note(0x1000 + i, "a", "4@$" + std::to_string(i)));
  }
  const Judged file = program.judge();
  REQUIRE(file.probes.probes.size() == specs);
  CHECK(file.failures("libbpf", 0) == (specs > 256 ? "attach:too-many-specs" : ""));
}

TEST_CASE("the base moves the location, by a rule of its own in each consumer") {
  ProgramBuilder program;
  // The notes were made for a base that was 0x100 lower, as prelink leaves them.
  for (NewProbe& probe : program.probes) {
    probe.location -= 0x100;
    probe.base -= 0x100;
    if (probe.semaphore != 0) probe.semaphore -= 0x100;
  }
  const Judged file = program.judge();
  REQUIRE(file.probes.probes[0].site == VirtAddr{ProgramBuilder::kText});
  for (const std::string name : {"libbpf", "libbpf-1.1", "gdb", "perf"}) {
    CAPTURE(name);
    CHECK(file.failures(name, 0).empty());
  }
  // SystemTap moves a counter at 0, which is none, like the others.
  CHECK(file.failures("systemtap", 0) == "semaphore:semaphore-address");
  CHECK(file.failures("bcc", 0) == "list:below-code");
  CHECK(file.failures("lttng", 0) == "attach:outside-text");
  CHECK(file.failures("bolt", 0) == "attach:wrong-address");
  // gdb moves the counter, too; libbpf does not and finds it in no segment.
  CHECK(file.failures("gdb", 1).empty());
  CHECK(file.failures("systemtap", 1).empty());
  CHECK(file.failures("libbpf", 1) == "attach:semaphore-segment");
  CHECK(file.failures("bpftrace", 0) == "list:semaphore-segment");
}

TEST_CASE("perf takes the base's offset for its address") {
  // A base whose distance between address and offset is not the code's, as lld places it.
  ElfBuilder elf;
  const auto id = elf.section(
      {.name = ".note.gnu.build-id",
       .type = SHT_NOTE,
       .align = 4,
       .bytes = elf.note(std::string_view("GNU", 4), NT_GNU_BUILD_ID, Bytes(20, std::byte{7}))});
  REQUIRE(id == 1);
  const auto base =
      elf.section({.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = 0x400, .bytes = Bytes(1)});
  elf.load(PF_R, base);
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x11600,
                                 .bytes = bytes_of({0x90, 0xc3})});
  elf.load(PF_R | PF_X, text);
  elf.section({.name = ".note.stapsdt",
               .type = SHT_NOTE,
               .align = 4,
               .bytes = elf.stapsdt(
                   {.location = 0x11600, .base = 0x400, .provider = "demo", .name = "a"})});
  const Judged file = judged(elf.build());
  REQUIRE(file.probes.probes.size() == 1);
  REQUIRE(file.probes.probes[0].site_offset == FileOffset{0x600});
  CHECK(file.failures("perf", 0) == "attach:wrong-address");
  CHECK(file.of("perf").failures.at(0).detail == "file offset 0x11600, right is 0x600");
  CHECK(file.failures("gdb", 0).empty());
  CHECK(file.failures("libbpf", 0).empty());
  CHECK(file.failures("bcc", 0).empty());
}

TEST_CASE("a short build-id, and none of perf's probes") {
  ProgramBuilder program;
  const Judged good = program.judge();
  CHECK(good.of("perf").ok == 2);
  ElfBuilder elf;
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .bytes = bytes_of({0x90, 0xc3})});
  elf.load(PF_R | PF_X, text);
  elf.section({.name = ".note.stapsdt",
               .type = SHT_NOTE,
               .align = 4,
               .bytes = elf.stapsdt({.location = 0x1000, .provider = "demo", .name = "a"})});
  CHECK(judged(elf.build()).failures("perf", 0) == "list:build-id");
}

// Tried with perf 6.1: `perf list sdt` after `perf buildid-cache --add`.
TEST_CASE("the sizes of build-ids that perf lists") {
  const auto [size, listed] =
      GENERATE(std::pair<std::size_t, bool>{8, false}, std::pair<std::size_t, bool>{15, false},
               std::pair<std::size_t, bool>{16, true}, std::pair<std::size_t, bool>{17, true},
               std::pair<std::size_t, bool>{20, true}, std::pair<std::size_t, bool>{32, true});
  ElfBuilder elf;
  elf.section(
      {.name = ".note.gnu.build-id",
       .type = SHT_NOTE,
       .align = 4,
       .bytes = elf.note(std::string_view("GNU", 4), NT_GNU_BUILD_ID, Bytes(size, std::byte{7}))});
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .bytes = bytes_of({0x90, 0xc3})});
  elf.load(PF_R | PF_X, text);
  elf.section({.name = ".note.stapsdt",
               .type = SHT_NOTE,
               .align = 4,
               .bytes = elf.stapsdt({.location = 0x1000, .provider = "demo", .name = "a"})});
  const Judged file = judged(elf.build());
  CAPTURE(size);
  CHECK((file.failures("perf", 0).find("build-id") == std::string::npos) == listed);
}

TEST_CASE("perf keeps nothing where the last note repeats an earlier one") {
  ProgramBuilder program;
  program.probes = {note(0x1000, "a", "4@$1"), note(0x1000, "a", "4@$2")};
  const Judged equal = program.judge();
  // Constants are not in its definition: the two are one.
  CHECK(equal.failures("perf", 0) == "list:last-note-repeats");
  CHECK(equal.of("perf").listed == 0);

  ProgramBuilder other;
  other.probes = {note(0x1000, "a", "4@%eax"), note(0x1000, "a", "4@%ebx")};
  CHECK(other.judge().of("perf").listed == 2);

  ProgramBuilder earlier;
  earlier.probes = {note(0x1000, "a"), note(0x1000, "a"), note(0x1001, "b")};
  CHECK(earlier.judge().of("perf").listed == 3);
}

TEST_CASE("a size that perf does not know empties the file") {
  ProgramBuilder program;
  program.probes = {note(0x1000, "a", "8@%rax"), note(0x1001, "b", "16@%rax")};
  const Judged file = program.judge();
  CHECK(file.failures("perf", 0) == "list:argument-stops-scan");
}

TEST_CASE("two notes at one address: BOLT moves the last") {
  ProgramBuilder program;
  program.probes = {note(0x1000, "a"), note(0x1000, "b")};
  const Judged file = program.judge();
  CHECK(file.failures("bolt", 0) == "attach:one-per-address");
  CHECK(file.failures("bolt", 1).empty());
  CHECK(file.failures("gdb", 0).empty());
}

TEST_CASE("a dangling note inside a function ends BOLT") {
  ProgramBuilder program;
  program.code = bytes_of({0x90, 0x90, 0x89, 0xc8, 0xc3});
  program.probes = {note(0x1000, "a"), note(0x1003, "gone"), note(0x4, "far")};
  const Judged file = program.judge();
  REQUIRE(file.probes.probes[1].verdict == Verdict::dangling);
  CHECK(file.failures("bolt", 0) == "attach:not-a-nop");
  CHECK(file.failures("bolt", 1) == "dangling:not-a-nop");
  CHECK(file.failures("bolt", 2).empty());  // in no function: passed over
}

TEST_CASE("a base at the start of the code crashes BOLT") {
  ProgramBuilder program;
  program.has_base = false;
  program.elf.section(
      {.name = ".stapsdt.base", .flags = SHF_ALLOC, .addr = ProgramBuilder::kText, .bytes = {}});
  for (NewProbe& probe : program.probes) probe.base = ProgramBuilder::kText;
  const Judged file = program.judge();
  CHECK(file.failures("bolt", 0) == "list:base-position");
  CHECK(file.failures("gdb", 0).empty());
}

TEST_CASE("LTTng knows no code outside of .text") {
  ProgramBuilder program;
  program.probes = {note(0x1000, "a")};
  const auto other = program.elf.section({.name = ".text.hot",
                                          .flags = SHF_ALLOC | SHF_EXECINSTR,
                                          .addr = 0x8000,
                                          .bytes = bytes_of({0x90, 0xc3})});
  program.elf.load(PF_R | PF_X, other);
  program.probes.push_back(note(0x8000, "b"));
  program.probes.push_back(note(0x1001, "b"));
  const Judged file = program.judge();
  CHECK(file.failures("lttng", 0).empty());
  CHECK(file.failures("lttng", 1) == "attach:outside-text");
  CHECK(file.failures("lttng", 2) == "attach:sibling");
  CHECK(file.failures("libbpf", 1).empty());
}

TEST_CASE("nops that the kernel takes, and one that it refuses") {
  ProgramBuilder program;
  // nop5; ds nop5 (refused); nop, nop10 with the site on the first
  program.code = bytes_of({0x0f, 0x1f, 0x44, 0x00, 0x00, 0x3e, 0x0f, 0x1f, 0x40, 0x00, 0x90,
                           0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc3});
  program.probes = {note(0x1000, "five"), note(0x1005, "prefixed"), note(0x100a, "ten")};
  const Judged file = program.judge();
  for (const std::string name : {"libbpf", "bcc", "perf", "systemtap", "lttng", "bpftrace"}) {
    CAPTURE(name);
    CHECK(file.failures(name, 0).empty());
    CHECK(file.failures(name, 1) == "attach:prefixed-nop");
    CHECK(file.failures(name, 2).empty());
  }
  CHECK(file.failures("gdb", 1).empty());
}

TEST_CASE("files of 32 bits") {
  ProgramBuilder program({.is64 = false, .machine = EM_386});
  const Judged file = program.judge();
  REQUIRE(file.probes.probes.size() == 2);
  for (const std::string name : {"libbpf", "libbpf-1.1", "bpftrace", "lttng"}) {
    CHECK(file.failures(name, 0) ==
          (name == "bpftrace" ? "list:class attach:class" : "list:class"));
  }
  for (const std::string name : {"gdb", "perf", "systemtap", "bcc"}) {
    CAPTURE(name);
    CHECK(file.failures(name, 0).empty());
    CHECK(file.failures(name, 1).empty());
  }
  CHECK(file.failures("bolt", 0) == "list:machine");
}

TEST_CASE("a relocatable object is nobody's") {
  ElfBuilder elf({.type = ET_REL});
  elf.section({.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .bytes = bytes_of({0x90})});
  elf.section({.name = ".note.stapsdt",
               .type = SHT_NOTE,
               .align = 4,
               .bytes = elf.stapsdt({.location = 0, .provider = "demo", .name = "a"})});
  const Judged file = judged(elf.build());
  CHECK(file.probes.probes.size() == 1);
  CHECK(file.by_name.empty());
}
