// Counters: who finds them, and whether the kernel raises them.
#include "consumers_file.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

constexpr std::size_t kSema = 1;  // the probe with a counter

}  // namespace

TEST_CASE("a counter outside of .probes") {
  ProgramBuilder program;
  program.counters = ".data";
  const Judged file = program.judge();
  CHECK(file.failures("libbpf", kSema).empty());
  CHECK(file.failures("bpftrace", kSema).empty());
  CHECK(file.failures("gdb", kSema).empty());
  CHECK(file.failures("bcc", kSema) == "semaphore:semaphore-no-probes-section");
  CHECK(file.failures("bpftrace-0.17", kSema) == "semaphore:semaphore-no-probes-section");
  // perf takes the address for the offset: it is the same here.
  REQUIRE(file.probes.probes[kSema].semaphore == VirtAddr{ProgramBuilder::kCounters});
  CHECK(file.failures("perf", kSema).empty());
}

TEST_CASE("a counter in a segment that is not writable, or has code") {
  const bool code = GENERATE(false, true);
  ProgramBuilder program;
  program.counter_flags = code ? PF_R | PF_W | PF_X : PF_R;
  const Judged file = program.judge();
  CHECK(file.failures("libbpf", kSema) ==
        (code ? "attach:semaphore-segment" : "semaphore:semaphore-read-only"));
  CHECK(
      file.failures("bpftrace", kSema) ==
      (code ? "list:semaphore-segment attach:semaphore-segment" : "semaphore:semaphore-read-only"));
  // One such counter empties the listing of bpftrace.
  CHECK(file.failures("bpftrace", 0) == (code ? "list:semaphore-segment" : ""));
  CHECK(file.failures("bcc", kSema) == (code ? "" : "semaphore:semaphore-read-only"));
  CHECK(file.failures("perf", kSema) == (code ? "" : "semaphore:semaphore-read-only"));
  CHECK(file.failures("gdb", kSema).empty());
}

TEST_CASE("a counter at an odd address is refused with its probe") {
  ProgramBuilder program;
  program.probes[kSema].semaphore = ProgramBuilder::kCounters + 1;
  const Judged file = program.judge();
  for (const std::string name : {"libbpf", "libbpf-1.1", "bcc", "bpftrace-0.17", "perf"}) {
    CAPTURE(name);
    CHECK(file.failures(name, kSema) == "attach:semaphore-odd");
  }
  CHECK(file.failures("gdb", kSema).empty());
}

TEST_CASE("a counter that is nowhere") {
  ProgramBuilder program;
  program.probes[kSema].semaphore = 0x700000;
  const Judged file = program.judge();
  CHECK(file.failures("libbpf", kSema) == "attach:semaphore-segment");
  CHECK(file.failures("bcc", kSema) == "semaphore:semaphore-not-in-file");
  CHECK(file.failures("gdb", kSema) == "semaphore:semaphore-address");
  CHECK(file.failures("systemtap", kSema) == "semaphore:semaphore-address");
  CHECK(file.failures("bpftrace", 0) == "list:semaphore-segment");
}

TEST_CASE("notes of one probe with different counters") {
  ProgramBuilder program;
  program.probes[0] = program.probes[kSema];
  program.probes[0].location = ProgramBuilder::kText;
  program.probes[0].semaphore += 2;
  const Judged file = program.judge();
  // libbpf gives each site its own; bcc the first note's to all.
  CHECK(file.failures("libbpf", 0).empty());
  CHECK(file.failures("libbpf", 1).empty());
  CHECK(file.failures("bcc", 0).empty());
  CHECK(file.failures("bcc", 1) == "semaphore:semaphore-sibling");

  ProgramBuilder same;
  same.probes[0] = same.probes[kSema];
  same.probes[0].semaphore += 2;
  const Judged conflict = same.judge();
  CHECK(conflict.failures("libbpf", 1) == "attach:semaphore-conflict");
  CHECK(conflict.failures("libbpf", 0) == "attach:sibling");
}

TEST_CASE("a note that does not name the counter of its symbol") {
  const std::uint64_t field = GENERATE(0U, 2U);
  ProgramBuilder program;
  program.probes[kSema].semaphore = field;
  program.elf.symbol({.name = "demo_sema_semaphore",
                      .value = ProgramBuilder::kCounters,
                      .size = 2,
                      .type = STT_OBJECT,
                      .shndx = 4});
  const Judged file = program.judge();
  CHECK(file.failures("gdb", kSema) == "semaphore:semaphore-field");
  CHECK(file.failures("systemtap", kSema) == (field == 0 ? "" : "semaphore:semaphore-field"));
  if (field == 0) CHECK(file.failures("libbpf", kSema) == "semaphore:semaphore-field");
}

TEST_CASE("a page of the file that is mapped twice, as lld and mold lay out RELRO") {
  ElfBuilder elf;
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .bytes = bytes_of({0x90, 0xc3})});
  elf.load(PF_R | PF_X, text);
  const auto relro = elf.section(
      {.name = ".data.rel.ro", .flags = SHF_ALLOC | SHF_WRITE, .addr = 0x2000, .bytes = Bytes(16)});
  elf.load(PF_R | PF_W, relro);
  const auto counters = elf.section(
      {.name = ".probes", .flags = SHF_ALLOC | SHF_WRITE, .addr = 0x3010, .bytes = Bytes(2)});
  elf.load(PF_R | PF_W, counters);
  elf.section({.name = ".note.stapsdt",
               .type = SHT_NOTE,
               .align = 4,
               .bytes = elf.stapsdt(
                   {.location = 0x1000, .semaphore = 0x3010, .provider = "demo", .name = "a"})});
  Bytes bytes = elf.build();
  // The builder starts a page of the file for each; linkers go on in the same one.
  const std::uint64_t offset = elf.offset(relro) + 16;
  elf.poke(bytes, elf.shdr(counters, "sh_offset"), offset);
  elf.poke(bytes, elf.phdr(2, "p_offset"), offset);
  const Judged file = judged(std::move(bytes));
  for (const std::string name : {"libbpf", "bcc", "bpftrace", "bpftrace-0.17"}) {
    CAPTURE(name);
    CHECK(file.failures(name, 0) == "semaphore:semaphore-relro-page");
  }
}

TEST_CASE("bcc looks for .probes behind the code and for the notes behind .probes") {
  const bool notes_first = GENERATE(false, true);
  ElfBuilder elf;
  const NewSection notes{
      .name = ".note.stapsdt",
      .type = SHT_NOTE,
      .align = 4,
      .bytes =
          elf.stapsdt({.location = 0x1000, .semaphore = 0x3000, .provider = "demo", .name = "a"})};
  const NewSection counters{
      .name = ".probes", .flags = SHF_ALLOC | SHF_WRITE, .addr = 0x3000, .bytes = Bytes(2)};
  std::uint32_t data = 0;
  if (notes_first) {
    elf.section(notes);
  } else {
    data = elf.section(counters);
  }
  const auto text = elf.section({.name = ".text",
                                 .flags = SHF_ALLOC | SHF_EXECINSTR,
                                 .addr = 0x1000,
                                 .bytes = bytes_of({0x90, 0xc3})});
  elf.load(PF_R | PF_X, text);
  if (notes_first) {
    data = elf.section(counters);
  } else {
    elf.section(notes);
  }
  elf.load(PF_R | PF_W, data);
  const Judged file = judged(elf.build());
  for (const std::string name : {"bcc", "bpftrace-0.17"}) {
    CAPTURE(name);
    CHECK(file.failures(name, 0) ==
          (notes_first ? "list:section-order" : "semaphore:semaphore-no-probes-section"));
  }
  CHECK(file.failures("libbpf", 0).empty());
}
