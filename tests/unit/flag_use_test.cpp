// Which flag of a comparison is read behind it.

#include "libprobe/code/flag_use.hpp"

#include "catch.hpp"
#include "code_bytes.hpp"
#include "elf_builder.hpp"
#include "flow_of_bytes.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr VirtAddr kStart{0x1000};

struct Answers {
  bool zero{};
  bool carry{};
};

// Of code that begins behind a comparison. `targets` of the function besides its start.
Answers answers(const char* code, std::initializer_list<std::pair<int, TargetKinds>> targets = {},
                bool complete = true) {
  ElfBuilder elf;
  const Bytes bytes = hex(code);
  const auto section = elf.section({.name = ".text",
                                    .flags = SHF_ALLOC | SHF_EXECINSTR,
                                    .addr = kStart.value,
                                    .align = 16,
                                    .bytes = bytes});
  elf.load(PF_R | PF_X, section);
  const auto file = ElfFile::open(memory_source(elf.build())).value();
  const auto ranges = CodeRanges::open(file);
  REQUIRE(ranges);
  FunctionFlow flow = flow_of(kStart, bytes, targets);
  flow.complete = complete;
  std::uint64_t budget = 10000;
  return {only_reads(StatusFlag::zero, *ranges, flow, kStart, budget),
          only_reads(StatusFlag::carry, *ranges, flow, kStart, budget)};
}

}  // namespace

TEST_CASE("flag use: one flag until they are overwritten") {
  struct Case {
    const char* code;
    bool zero;
    bool carry;
  };
  for (const Case& c : {
           Case{"74 01 90 c3", true, false},              // je; ret
           Case{"75 01 90 c3", true, false},              // jne
           Case{"0f 94 c0 c3", true, false},              // sete
           Case{"0f 44 c1 c3", true, false},              // cmove
           Case{"0f 85 01 00 00 00 90 c3", true, false},  // jne rel32
           Case{"72 01 90 c3", false, true},              // jb
           Case{"0f 93 c0 c3", false, true},              // setae
           Case{"83 d0 00 c3", false, true},              // adc $0
           Case{"19 c0 c3", false, true},                 // sbb %eax,%eax
           Case{"77 01 90 c3", false, false},             // ja reads both
           Case{"78 01 90 c3", false, false},             // js
           Case{"7e 01 90 c3", false, false},             // jle
           Case{"9c c3", false, false},                   // pushf
           Case{"9f c3", false, false},                   // lahf
           Case{"d1 d0 c3", false, false},                // rcl
           Case{"c3", true, true},                        // nobody reads any
           Case{"89 c8 74 01 90 c3", true, false},        // mov between
           Case{"74 02 85 c0 78 00 c3", false, false},    // js where je led: old flags
           Case{"85 c0 78 00 c3", true, true},            // test, then js: new flags
           Case{"83 c0 01 78 00 c3", true, true},         // add
           Case{"c1 e8 03 78 00 c3", true, true},         // shr $3
           Case{"c1 e8 00 78 00 c3", false, false},       // shr $0 leaves them
           Case{"d3 e8 78 00 c3", false, false},          // shr %cl may leave them
           Case{"ff c0 74 00 c3", true, false},           // inc leaves CF, sets ZF
           Case{"ff c0 72 00 c3", false, true},           // and CF is read behind it
           Case{"f7 d0 78 00 c3", false, false},          // not has no flags
           Case{"f7 d8 78 00 c3", true, true},            // neg
           Case{"e8 00 00 00 00 78 00 c3", true, true},   // dead at a call
           Case{"0f 0b", true, true},                     // ud2
           Case{"fc 78 00 c3", false, false},             // cld leaves them
           Case{"e2 00 c3", false, false},                // loop: not followed
       }) {
    CAPTURE(c.code);
    const Answers found = answers(c.code);
    CHECK(found.zero == c.zero);
    CHECK(found.carry == c.carry);
  }
}

TEST_CASE("flag use: loops end, and paths that cannot be followed are not taken for good") {
  CHECK(answers("74 fe c3").zero);  // je to itself
  // jmp *%rax: to a target of the function that reads SF, or to nothing that is known.
  CHECK(answers("ff e0 78 00 c3").zero);
  CHECK_FALSE(answers("ff e0 78 00 c3", {{2, kTargetTable}}).zero);
  CHECK_FALSE(answers("ff e0 78 00 c3", {}, false).zero);
  // A jump out of the code that the file has.
  CHECK_FALSE(answers("e9 00 10 00 00").zero);
  CHECK_FALSE(answers("74 01").zero);
}

TEST_CASE("flag use: no more than the budget") {
  ElfBuilder elf;
  const Bytes bytes(64, std::byte{0x90});
  const auto section = elf.section(
      {.name = ".text", .flags = SHF_ALLOC | SHF_EXECINSTR, .addr = kStart.value, .bytes = bytes});
  elf.load(PF_R | PF_X, section);
  const auto file = ElfFile::open(memory_source(elf.build())).value();
  const auto ranges = CodeRanges::open(file);
  std::uint64_t budget = 10;
  CHECK_FALSE(only_reads(StatusFlag::zero, *ranges, flow_of(kStart, bytes, {}), kStart, budget));
  CHECK(budget == 0);
}
