// One file with two probes, `plain` then `sema`, and one fault at a time: how many probes each
// consumer lists. The counts were measured with the tools: readelf 2.40, gdb 13.1, perf 6.1, bcc.
#include "consumers_file.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

constexpr std::size_t kDescsz = 4, kType = 8;  // n_descsz, n_type

// Of the two probes, those that are found and attached at the right byte.
std::size_t right(const Judged& file, const std::string& consumer) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < file.probes.probes.size(); ++i) {
    const std::string failures = file.failures(consumer, i);
    if (failures.find("list:") == std::string::npos &&
        failures.find("attach:") == std::string::npos)
      ++count;
  }
  return count;
}

void check_listed(const Judged& file, std::size_t gdb, std::size_t perf, std::size_t bcc) {
  CHECK(file.of("gdb").listed == gdb);
  CHECK(file.of("perf").listed == perf);
  CHECK(file.of("bcc").listed == bcc);
  CHECK(file.of("bpftrace-0.17").listed == bcc);
}

}  // namespace

TEST_CASE("a faultless file is read by every consumer") {
  ProgramBuilder program;
  const Judged file = program.judge();
  REQUIRE(file.probes.probes.size() == 2);
  check_listed(file, 2, 2, 2);
  for (const std::string_view name : consumer_names()) {
    CAPTURE(std::string(name));
    const ConsumerVerdict& verdict = file.of(std::string(name));
    CHECK(file.failures(std::string(name), 0).empty());
    CHECK(verdict.listed == 2);
    CHECK(verdict.dangling == 0);
    if (name == "lttng") {
      CHECK(file.failures("lttng", 1) == "attach:semaphore-unsupported");
    } else {
      CHECK(file.failures(std::string(name), 1).empty());
      CHECK(verdict.ok == 2);
      CHECK(verdict.fail == 0);
    }
  }
}

TEST_CASE("sh_addralign 8 over notes that are laid out for 4") {
  ProgramBuilder program;
  program.notes.align = 8;
  const Judged file = program.judge();
  CHECK(file.of("gdb").listed == 0);
  CHECK(file.of("bcc").listed == 0);
  CHECK(right(file, "perf") == 0);  // perf lists names that are none
  CHECK(file.of("libbpf").listed == 0);
  CHECK(file.of("systemtap").listed == 0);
  CHECK(file.of("lttng").listed == 2);  // always pads to 4
  CHECK(file.of("bolt").listed == 2);
}

TEST_CASE("sh_addralign 16 and 1") {
  const std::uint64_t align = GENERATE(1U, 16U);
  ProgramBuilder program;
  program.notes.align = align;
  check_listed(program.judge(), align == 16 ? 0 : 2, 2, 2);  // BFD pads to 4 or 8 only
}

TEST_CASE("SHF_ALLOC of the note section") {
  ProgramBuilder program;
  program.notes.flags = SHF_ALLOC;
  program.notes.addr = 0x5000;
  const Judged file = program.judge();
  check_listed(file, 2, 0, 2);
  CHECK(file.failures("perf", 0) == "list:section-alloc");
  CHECK(file.failures("systemtap", 1) == "list:section-alloc");
  CHECK(file.of("libbpf").listed == 2);
  CHECK(file.of("bolt").listed == 0);
}

TEST_CASE("the last note's padding is outside the section") {
  ProgramBuilder program;
  Bytes bytes = program.joined(0, 2);
  // descsz 24 + "demo" + "sema" + "" and three NULs = 35: one byte of padding.
  bytes.pop_back();
  const Judged file = program.judge(std::move(bytes));
  check_listed(file, 2, 1, 1);
  CHECK(file.failures("perf", 1) == "list:scan-stopped");
  CHECK(file.of("libbpf").listed == 1);
}

TEST_CASE("tracers where descsz counts the padding") {
  ProgramBuilder program;
  program.probes[0].name = "plan";  // as long as "sema": both have a byte of padding
  Bytes bytes = program.joined(0, 2);
  for (const std::size_t note : {std::size_t{0}, bytes.size() / 2}) {
    put(bytes, {note + kDescsz, 4}, std::endian::little, bytes.size() / 2 - 20);
  }
  const Judged file = program.judge(std::move(bytes));
  check_listed(file, 0, 2, 0);
  CHECK(file.failures("gdb", 0) == "list:note-end");
  CHECK(file.of("systemtap").listed == 0);
  CHECK(file.of("libbpf").listed == 2);
  CHECK(file.of("bolt").listed == 2);
}

TEST_CASE("two note sections") {
  ProgramBuilder program;
  program.more_notes.push_back(
      {.name = ".note.stapsdt", .type = SHT_NOTE, .align = 4, .bytes = program.joined(1, 2)});
  const Judged file = program.judge(program.joined(0, 1));
  check_listed(file, 2, 1, 2);
  CHECK(file.failures("perf", 1) == "list:second-section");
  CHECK(file.failures("libbpf", 1) == "list:second-section");
  CHECK(file.failures("lttng", 1) == "list:second-section");
  CHECK(file.of("systemtap").listed == 2);
  CHECK(file.of("bolt").listed == 0);
}

TEST_CASE("type 4 on the first note") {
  ProgramBuilder program;
  Bytes bytes = program.joined(0, 2);
  put(bytes, {kType, 4}, std::endian::little, 4);
  const Judged file = program.judge(std::move(bytes));
  check_listed(file, 1, 0, 1);
  CHECK(file.failures("perf", 1) == "list:scan-stopped");
  CHECK(file.failures("libbpf", 1) == "list:malformed-note");
  CHECK(file.failures("bpftrace", 1) == "attach:malformed-note");
  CHECK(file.failures("gdb", 0) == "list:note-type");
}

TEST_CASE("location 0") {
  ProgramBuilder program;
  program.probes[0].location = 0;
  const Judged file = program.judge();
  REQUIRE(file.probes.probes[0].verdict == Verdict::dangling);
  check_listed(file, 2, 2, 1);
  CHECK(file.failures("gdb", 0) == "dangling:dangling-listed");
  CHECK(file.failures("perf", 0) == "dangling:dangling-attached");
  CHECK(file.failures("bcc", 0).empty());  // dropped with a warning, as it should be
  CHECK(file.of("gdb").dangling == 1);
  CHECK(file.of("gdb").ok == 1);
  CHECK(file.of("gdb").fail == 1);
}

TEST_CASE("base 0 while .stapsdt.base is in the file") {
  ProgramBuilder program;
  for (NewProbe& probe : program.probes) probe.base = 0;
  const Judged file = program.judge();
  check_listed(file, 2, 2, 2);
  CHECK(right(file, "gdb") == 0);
  CHECK(right(file, "perf") == 0);
  CHECK(right(file, "bcc") == 2);
  CHECK(right(file, "libbpf") == 2);
  CHECK(right(file, "libbpf-1.1") == 0);
  CHECK(right(file, "systemtap") == 0);
}

TEST_CASE("no .stapsdt.base") {
  ProgramBuilder program;
  program.has_base = false;
  for (NewProbe& probe : program.probes) probe.base = 0;
  const Judged file = program.judge();
  CHECK(file.of("gdb").listed == 0);
  CHECK(file.failures("gdb", 0) == "list:base-missing");
  // perf then takes the address for the offset, which it is here.
  REQUIRE(file.probes.probes[0].site_offset == FileOffset{ProgramBuilder::kText});
  CHECK(right(file, "perf") == 2);
  CHECK(right(file, "bcc") == 2);
  CHECK(right(file, "libbpf") == 2);
  CHECK(right(file, "systemtap") == 2);
}
