// Hostile counts and selections.
#include "consumers_file.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::test;

}  // namespace

TEST_CASE("many notes of one name, all refused by one of them") {
  constexpr std::size_t kMany = 20000;
  ProgramBuilder program;
  program.code = Bytes(kMany, std::byte{0x90});
  program.code.push_back(std::byte{0xc3});
  program.probes.clear();
  program.has_base = false;  // the code is where it would be
  program.counters = ".data";
  for (std::size_t i = 0; i < kMany; ++i) {
    program.probes.push_back(
        {.location = ProgramBuilder::kText + i, .provider = "demo", .name = "a"});
  }
  program.probes.back().location = 0x900000;
  const Judged file = program.judge();
  REQUIRE(file.probes.probes.size() == kMany);
  const ConsumerVerdict& libbpf = file.of("libbpf");
  CHECK(libbpf.fail == kMany - 1);
  CHECK(libbpf.ok == 0);
  CHECK(libbpf.failures.size() == kFailuresKept);
  CHECK(libbpf.left_out == kMany - 1 - kFailuresKept);
  CHECK(file.of("perf").ok == kMany - 1);
  CHECK(file.of("systemtap").dangling == 1);
}

TEST_CASE("names and selections") {
  ProgramBuilder program;
  const Judged file = program.judge();
  const auto elf = ElfFile::open(file.source);
  REQUIRE(elf);
  const std::vector<std::string> names{"perf", "gdb"};
  const auto some = consumer_verdicts(*elf, file.probes, names);
  REQUIRE(some.size() == 2);
  CHECK(some[0].consumer == "gdb");
  CHECK(some[1].consumer == "perf");
  const auto first = consumer_verdicts(*elf, file.probes, names, {true, false});
  CHECK(first[0].ok == 1);
  CHECK(first[0].listed == 1);
}

TEST_CASE("every reason that is given has a sentence") {
  CHECK(reason_text("no-such-reason").empty());
  CHECK(reason_text("base-missing").size() > 10);
  CHECK(reason_is_limit("semaphore-unsupported"));
  CHECK_FALSE(reason_is_limit("base-missing"));
}

TEST_CASE("addresses at the ends of the number range") {
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0},
                                    ~std::uint64_t{0} - 1, std::uint64_t{1} << 63}) {
    ProgramBuilder program;
    program.probes[0].location = value;
    program.probes[0].base = ~value;
    program.probes[0].semaphore = value;
    program.probes[1].base = value;
    program.probes[1].semaphore = value;
    const Judged file = program.judge();
    CHECK(file.by_name.size() == consumer_names().size());
    for (const auto& [name, verdict] : file.by_name) {
      for (const ConsumerFailure& failure : verdict.failures) {
        CHECK_FALSE(reason_text(failure.reason).empty());
      }
    }
  }
}
