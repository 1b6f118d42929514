// Checks of counters in whole files: which are rewritten, how, and which are refused; and that
// verify finds each byte that is not what it should be. Code as GNU as writes it.

#include "libprobe/rewrite/guards/guards.hpp"

#include <algorithm>

#include "audit_file.hpp"
#include "catch.hpp"
#include "code_bytes.hpp"
#include "libprobe/audit/read_probes.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/plan/undo.hpp"
#include "libprobe/verify/compare_guards.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kText = 0x1000, kCounter = 0x3000;

// One function at 0x1000 that ends with the code, and one probe with the counter at 0x3000.
AuditFile program(const char* code, std::uint64_t site, std::uint16_t type = ET_DYN) {
  AuditFile file;
  file.kind.type = type;
  file.code = hex(code);
  file.symbols = {
      {.name = "f", .value = kText, .size = file.code.size(), .type = STT_FUNC, .shndx = 1}};
  file.code.resize(0x80, std::byte{0xcc});
  file.probes = {{.location = site, .semaphore = kCounter, .provider = "p", .name = "n"}};
  return file;
}

struct Rewritten {
  Bytes before;
  Bytes after;
  GuardsResult result;
};

Rewritten rewrite(const AuditFile& from, GuardsTo to = GuardsTo::site) {
  Rewritten all{from.build(), {}, {}};
  const auto file = ElfFile::open(borrowed_source(all.before)).value();
  auto result = plan_guards(file, read_probes(file), {to, {}});
  REQUIRE(result);
  all.after = apply(result->plan, file.source()).value();
  all.result = std::move(*result);
  return all;
}

std::vector<Finding> verify(const Bytes& before, const Bytes& after) {
  const auto a = ElfFile::open(borrowed_source(before)).value();
  const auto b = ElfFile::open(borrowed_source(after)).value();
  return compare_guards(a, b);
}

// What stands at an address of the result.
Bytes code_at(const Rewritten& all, std::uint64_t at, std::size_t size) {
  const auto file = ElfFile::open(borrowed_source(all.after)).value();
  const ByteView bytes = file.bytes_at(VirtAddr{at}, Size{size});
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> reasons(const Rewritten& all) {
  std::vector<std::string> found;
  for (const GuardOutcome& outcome : all.result.outcomes)
    if (!outcome.reason.empty()) found.push_back(outcome.reason);
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void check_refused(const AuditFile& from, const std::string& reason) {
  const Rewritten all = rewrite(from);
  CHECK(all.after == all.before);
  CHECK(reasons(all) == std::vector<std::string>{reason});
}

void check_restores(const Rewritten& all, std::string_view section) {
  const auto file = ElfFile::open(borrowed_source(all.after)).value();
  const auto undo = plan_undo(file, section);
  REQUIRE(undo);
  CHECK(apply(*undo, file.source()).value() == all.before);
}

VirtAddr semaphore_of(const Bytes& bytes) {
  const auto file = ElfFile::open(borrowed_source(bytes)).value();
  return read_probes(file).probes.at(0).semaphore;
}

// cmpw $0,0x3000(%rip); je 1f; nop; 1: ret
constexpr const char* kCompare = "66 83 3d f8 1f 00 00 00 74 01 90 c3";
// movzwl 0x3000(%rip),%eax; test %ax,%ax; je 1f; nop; 1: ret
constexpr const char* kLoad = "0f b7 05 f9 1f 00 00 66 85 c0 74 01 90 c3";
// lea 0x3000(%rip),%rbx; cmpw $0,(%rbx); je 1f; nop; 1: ret
constexpr const char* kPointer = "48 8d 1d f9 1f 00 00 66 83 3b 00 74 01 90 c3";
// lea 0x3000(%rip),%rbx; push %rax; movzwl (%rbx),%eax; test %eax,%eax; je 1f; nop; 1: pop; ret
constexpr const char* kPointerLoad = "48 8d 1d f9 1f 00 00 50 0f b7 03 85 c0 74 01 90 58 c3";

}  // namespace

TEST_CASE("guards: a compare looks at the site, in place") {
  const Rewritten all = rewrite(program(kCompare, 0x100a));
  CHECK(code_at(all, kText, 12) == hex("66 80 3d 02 00 00 00 90 74 01 90 c3"));
  CHECK(semaphore_of(all.after) == VirtAddr{0});
  REQUIRE(all.result.outcomes.size() == 1);
  CHECK(all.result.outcomes[0].what == "compare");
  CHECK(all.result.outcomes[0].tactic == "in-place");
  CHECK(verify(all.before, all.after).empty());
  check_restores(all, kGuardsAtSite);
}

TEST_CASE("guards: a load jumps to a stub") {
  const Rewritten all = rewrite(program(kLoad, 0x100c));
  REQUIRE(all.result.outcomes.size() == 1);
  CHECK(all.result.outcomes[0].tactic == "stub");
  const Bytes jump = code_at(all, kText, 14);
  CHECK(jump[0] == std::byte{0xe9});
  CHECK(Bytes(jump.begin() + 5, jump.end()) == hex("cc cc 66 85 c0 74 01 90 c3"));
  const auto stub = kText + 5 + load_uint(jump, 1, 4, std::endian::little);
  const Bytes code = code_at(all, stub, 19);
  CHECK(Bytes(code.begin(), code.begin() + 2) == hex("80 3d"));
  CHECK(stub + 7 + load_uint(code, 2, 4, std::endian::little) == 0x100c + (1ULL << 32));
  CHECK(Bytes(code.begin() + 6, code.begin() + 14) == hex("90 0f 95 c0 0f b6 c0 e9"));
  CHECK(verify(all.before, all.after).empty());
  check_restores(all, kGuardsAtSite);
}

TEST_CASE("guards: addresses in registers lead to the site") {
  const Rewritten all = rewrite(program(kPointer, 0x100d));
  CHECK(code_at(all, kText, 15) == hex("48 8d 1d 06 00 00 00 66 80 3b 90 74 01 90 c3"));
  CHECK(verify(all.before, all.after).empty());
  // A load of 3 bytes takes its neighbours along.
  const Rewritten moved = rewrite(program(kPointerLoad, 0x100f));
  REQUIRE(moved.result.outcomes.size() == 1);
  CHECK(moved.result.outcomes[0].tactic == "stub");
  CHECK(verify(moved.before, moved.after).empty());
}

TEST_CASE("guards: absolute operands and immediates of a program at a fixed address") {
  // cmpw $0,0x3000; je; nop; ret - mov $0x3000,%ebx; cmpw $0,(%rbx); je; nop; ret
  const Rewritten direct =
      rewrite(program("66 83 3c 25 00 30 00 00 00 74 01 90 c3", 0x100b, ET_EXEC));
  CHECK(code_at(direct, kText, 13) == hex("66 80 3c 25 0b 10 00 00 90 74 01 90 c3"));
  CHECK(verify(direct.before, direct.after).empty());
  const Rewritten immediate =
      rewrite(program("bb 00 30 00 00 66 83 3b 00 74 01 90 c3", 0x100b, ET_EXEC));
  CHECK(code_at(immediate, kText, 13) == hex("bb 0b 10 00 00 66 80 3b 90 74 01 90 c3"));
  CHECK(verify(immediate.before, immediate.after).empty());
}

TEST_CASE("guards: what is not understood is refused") {
  // incw; cmpl; a neighbour's wide load; movups over it
  for (const char* code :
       {"66 ff 05 f9 1f 00 00 90 c3", "83 3d f9 1f 00 00 00 90 c3", "48 8b 05 f3 1f 00 00 90 c3",
        "0f 10 05 f1 1f 00 00 90 c3", "68 00 30 00 00 90 c3"}) {
    CAPTURE(code);
    const bool push = std::string_view(code).starts_with("68");
    check_refused(program(code, 0x1007 - (push ? 2 : 0), push ? ET_EXEC : ET_DYN),
                  "an instruction that is not understood");
  }
  // cmpw $0; ja: more than equality
  check_refused(program("66 83 3d f8 1f 00 00 00 77 01 90 c3", 0x100a),
                "more is read from the flags than whether the counter is 0");
  // lea; mov %rbx,0x4000(%rip): the address is kept
  check_refused(program("48 8d 1d f9 1f 00 00 66 83 3b 00 48 89 1d ee 2f 00 00 90 c3", 0x1012),
                "the counter's address is used for more than checks");
  // The same of a copy: lea to %rsi; cmpw; mov %rsi,%rbx; mov %rbx,0x4000(%rip)
  check_refused(
      program("48 8d 35 f9 1f 00 00 66 83 3e 00 48 89 f3 48 89 1d eb 2f 00 00 90 c3", 0x1015),
      "the counter's address is used for more than checks");
  // lea to %rdi; call *%rax: it may be an argument
  check_refused(program("48 8d 3d f9 1f 00 00 ff d0 90 c3", 0x1009),
                "the counter's address may be passed on");
  // lea to %rsi; cmpw; call of a function that reads %rsi: mov %rsi,%rax; ret
  check_refused(
      program("48 8d 35 f9 1f 00 00 66 83 3e 00 e8 02 00 00 00 90 c3 48 89 f0 c3", 0x1010),
      "the counter's address may be passed on");
  // lea to %rax; cmpw; ret: it may be the result
  check_refused(program("48 8d 05 f9 1f 00 00 66 83 38 00 90 c3", 0x100b),
                "the counter's address may be passed on");
  // lea to %rcx; cmpw; call *%rbx; cmpw $0,(%rcx): nobody knows what is in %rcx then
  check_refused(program("48 8d 0d f9 1f 00 00 66 83 39 00 ff d3 66 83 39 00 90 c3", 0x1011),
                "a check through a register that a call may have overwritten");
  // test %edi,%edi; je 1f; lea; cmpw; sete %al; jmp 2f; 1: mov %rdi,%rsi; 2: mov (%rsi),%rax; nop
  check_refused(
      program("85 ff 74 10 48 8d 35 f5 1f 00 00 66 83 3e 00 0f 94 c0 eb 03 48 89 fe 48 8b 06 90 c3",
              0x101a),
      "the counter's address is used for more than checks");
  // test %edi,%edi; je 1f; lea 0x3000(%rip),%rsi; 1: cmpw $0,(%rsi); je 2f; nop; 2: ret
  check_refused(program("85 ff 74 07 48 8d 35 f5 1f 00 00 66 83 3e 00 74 01 90 c3", 0x1011),
                "the register may hold another address");
  // movzwl 0x3000(,%rax,2),%eax of a program at a fixed address
  check_refused(program("0f b7 04 45 00 30 00 00 90 c3", 0x1008, ET_EXEC),
                "an indexed operand near the counter");
  // movabs 0x3000,%al
  check_refused(program("a0 00 30 00 00 00 00 00 00 90 c3", 0x1009, ET_EXEC),
                "an instruction that is not understood");
}

TEST_CASE("guards: what becomes of an address that no check needs any more") {
  struct Case {
    const char* code;
    unsigned site;
  };
  // The check of lea 0x3000(%rip),%rsi; cmpw $0,(%rsi) is rewritten wherever %rsi goes then:
  for (
      const Case& c : {
          // into the frame and back, up to the probe: je 1f; mov %rsi,(%rsp); call 1f;
          // mov (%rsp),%rsi; nop; 1: ret
          Case{
              "48 8d 35 f9 1f 00 00 66 83 3e 00 74 0e 48 89 34 24 e8 05 00 00 00 48 8b 34 24 90 c3",
              0x101a},
          // left over at a call, and copied: mov %rsi,%rbx; call; cmpw $0,(%rbx); je; nop; ret
          Case{"48 8d 35 f9 1f 00 00 66 83 3e 00 48 89 f3 e8 07 00 00 00 66 83 3b 00 74 01 90 c3",
               0x1019},
          // overwritten: xor %esi,%esi; mov %esi,%eax; nop; ret
          Case{"48 8d 35 f9 1f 00 00 66 83 3e 00 0f 94 c0 31 f6 89 f0 90 c3", 0x1012},
          // kept in a register that the ABI lets the callee clobber, over a call of one that does
          // not: call 1f; cmpw $0,(%rsi); je 1f; nop; 1: ret
          Case{"48 8d 35 f9 1f 00 00 66 83 3e 00 e8 07 00 00 00 66 83 3e 00 74 01 90 c3", 0x1016},
          // through a word of the frame: je 1f; mov %rsi,(%rsp); call 1f; mov (%rsp),%rsi;
          // cmpw $0,(%rsi); je 1f; nop; 1: ret
          Case{
              "48 8d 35 f9 1f 00 00 66 83 3e 00 74 14 48 89 34 24 e8 0b 00 00 00 48 8b 34 24 66 83 "
              "3e 00 74 01 90 c3",
              0x1020},
      }) {
    CAPTURE(c.code);
    const Rewritten all = rewrite(program(c.code, c.site));
    REQUIRE(reasons(all).empty());
    CHECK(verify(all.before, all.after).empty());
  }
  // Through a word of the frame of which an address is taken: mov %rsi,-16(%rsp);
  // lea -32(%rsp),%rdi; mov %rdi,0x4000(%rip); mov -16(%rsp),%rsi; cmpw; je; nop; ret
  check_refused(
      program("48 8d 35 f9 1f 00 00 48 89 74 24 f0 48 8d 7c 24 e0 48 89 3d e8 2f 00 00 48 "
              "8b 74 24 f0 66 83 3e 00 74 01 90 c3",
              0x1023),
      "kept in memory: an address of the frame is taken");
}

TEST_CASE("guards: one use that is not understood keeps all others of the counter") {
  std::string code = kCompare;
  // Before its end another use: incw 0x3000(%rip)
  code = "66 ff 05 f9 1f 00 00 66 83 3d f1 1f 00 00 00 74 01 90 c3";
  const Rewritten all = rewrite(program(code.c_str(), 0x1011));
  CHECK(all.after == all.before);
  CHECK(all.result.outcomes.size() == 2);
  CHECK(reasons(all) == std::vector<std::string>{"an instruction that is not understood"});
}

TEST_CASE("guards: a word of data that holds the address") {
  AuditFile file = program(kCompare, 0x100a, ET_EXEC);
  store_uint(file.counter_bytes, 8, 4, std::endian::little, kCounter);
  check_refused(file, "a word of data holds the counter's address");
}

TEST_CASE("guards: program headers that are loaded hold the address of a segment") {
  AuditFile file = program(kCompare, 0x100a, ET_EXEC);
  file.more_segments = {
      {.flags = PF_R, .offset = 0, .vaddr = 0x10000, .filesz = 0x200, .memsz = 0x200}};
  CHECK(reasons(rewrite(file)).empty());
}

TEST_CASE("guards: bytes that look like a use and are none") {
  // movabs $imm64,%rax with the bytes of a cmpw in it: its displacement would lead to the counter.
  AuditFile file =
      program("48 b8 66 83 3d f6 1f 00 00 00 66 83 3d ee 1f 00 00 00 74 01 90 c3", 0x1014);
  const Rewritten all = rewrite(file);
  REQUIRE(all.result.outcomes.size() == 1);
  CHECK(all.result.outcomes[0].at == VirtAddr{0x100a});
  CHECK(verify(all.before, all.after).empty());
}

TEST_CASE("guards: sites that do not tell") {
  SECTION("a long nop behind the first byte") {
    check_refused(
        program("66 83 3d f8 1f 00 00 00 74 0b 90 66 2e 0f 1f 84 00 00 00 00 00 c3", 0x100a),
        "a tracer may arm the nop behind the site's first byte");
  }
  SECTION("two probes with one counter") {
    AuditFile file = program("66 83 3d f8 1f 00 00 00 74 02 90 90 c3", 0x100a);
    file.probes.push_back(
        {.location = 0x100b, .semaphore = kCounter, .provider = "p", .name = "other"});
    check_refused(file,
                  "several probes share the counter, and the site of one does not show the "
                  "others");
  }
  SECTION("the five-byte nop has a first byte of its own") {
    const Rewritten all =
        rewrite(program("66 83 3d f8 1f 00 00 00 74 05 0f 1f 44 00 00 c3", 0x100a));
    CHECK(code_at(all, kText, 8) == hex("66 80 3d 02 00 00 00 0f"));
    CHECK(verify(all.before, all.after).empty());
  }
}

TEST_CASE("guards: a counter that nothing checks stays") {
  const Rewritten all = rewrite(program("90 c3", 0x1000));
  CHECK(all.after == all.before);
  CHECK(all.result.outcomes.empty());
}

TEST_CASE("guards: start-up code that computes with the address uses no counter") {
  // lea T(%rip),%rdi; lea T(%rip),%rax; cmp %rdi,%rax; je ... : T is where .probes begins, and no
  // function is known there.
  AuditFile file = program(kCompare, 0x100a);
  const Bytes start =
      hex("48 8d 3d b9 1f 00 00 48 8d 05 b2 1f 00 00 48 39 f8 74 15 48 8b 05 00 00 00 00");
  std::ranges::copy(start, file.code.begin() + 0x40);
  const Rewritten all = rewrite(file);
  CHECK(reasons(all).empty());
  CHECK(all.result.outcomes.size() == 1);
  CHECK(verify(all.before, all.after).empty());
  // The same outside of every function, but of another shape.
  file.code[0x40 + 14] = std::byte{0x49};
  check_refused(file, "in no known function");
}

TEST_CASE("guards: the counter is raised from the start") {
  const Rewritten all = rewrite(program(kCompare, 0x100a), GuardsTo::on);
  const auto file = ElfFile::open(borrowed_source(all.after)).value();
  CHECK(load_uint(file.bytes_at(VirtAddr{kCounter}, Size{2}), 0, 2, std::endian::little) == 1);
  CHECK(semaphore_of(all.after) == VirtAddr{kCounter});
  CHECK(verify(all.before, all.after).empty());
  check_restores(all, kGuardsOn);

  SECTION("not in .bss, and not twice") {
    AuditFile bss = program(kCompare, 0x100a);
    bss.counters_nobits = true;
    CHECK(reasons(rewrite(bss, GuardsTo::on)) ==
          std::vector<std::string>{"the counter has no bytes in the file"});
    AuditFile raised = program(kCompare, 0x100a);
    raised.counter_bytes[0] = std::byte{1};
    CHECK(reasons(rewrite(raised, GuardsTo::on)) ==
          std::vector<std::string>{"the counter is not 0"});
    CHECK(plan_guards(file, read_probes(file), {GuardsTo::on, {}}).value().already);
    const auto other = plan_guards(file, read_probes(file), {GuardsTo::site, {}});
    REQUIRE_FALSE(other);
    CHECK(other.error().code == ErrorCode::refused);
  }
  SECTION("on other machines, in their byte order") {
    AuditFile big = program(kCompare, 0x100a);
    big.kind = {.is64 = true, .order = std::endian::big, .type = ET_DYN, .machine = EM_S390};
    const Rewritten raised = rewrite(big, GuardsTo::on);
    CHECK(code_at(raised, kCounter, 2) == hex("00 01"));
    CHECK(verify(raised.before, raised.after).empty());
  }
}

TEST_CASE("guards: verify finds every byte that is not what it should be") {
  for (const auto& [code, site] :
       {std::pair(kCompare, 0x100aU), std::pair(kLoad, 0x100cU), std::pair(kPointer, 0x100dU),
        std::pair(kPointerLoad, 0x100fU)}) {
    const Rewritten all = rewrite(program(code, site));
    REQUIRE(verify(all.before, all.after).empty());
    const auto file = ElfFile::open(borrowed_source(all.after)).value();
    std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
    for (const char* name : {".text", ".probes", ".note.stapsdt", ".text.reprobe"}) {
      if (const Section* s = file.section(name))
        places.emplace_back(s->offset.value, s->size.value);
    }
    for (const auto& [offset, size] : places) {
      for (std::uint64_t i = offset; i < offset + size; ++i) {
        CAPTURE(code, i - offset, offset);
        Bytes poked = all.after;
        poked[static_cast<std::size_t>(i)] ^= std::byte{0x11};
        CHECK_FALSE(verify(all.before, poked).empty());
      }
    }
  }
}

TEST_CASE("guards: verify wants all checks of a counter, or none") {
  // Two compares; the second is put back.
  const char* twice = "66 83 3d f8 1f 00 00 00 74 0a 66 83 3d ee 1f 00 00 00 74 01 90 c3";
  const Rewritten all = rewrite(program(twice, 0x1014));
  REQUIRE(verify(all.before, all.after).empty());
  const auto file = ElfFile::open(borrowed_source(all.after)).value();
  const std::uint64_t text = file.section(".text")->offset.value;
  Bytes half = all.after;
  std::copy_n(all.before.begin() + static_cast<std::ptrdiff_t>(text + 10), 8,
              half.begin() + static_cast<std::ptrdiff_t>(text + 10));
  CHECK_FALSE(verify(all.before, half).empty());
}

TEST_CASE("guards: audit and fix miss no counter where checks look at the site") {
  AuditFile from = program(kCompare, 0x100a);
  from.symbols.push_back(
      {.name = "p_n_semaphore", .value = kCounter, .size = 2, .type = STT_OBJECT, .shndx = 3});
  const Rewritten all = rewrite(from);
  CHECK(AuditFile::found_in(all.before) == std::vector<std::string>{});
  CHECK(AuditFile::found_in(all.after) == std::vector<std::string>{});
  // Without the record it is an ordinary note that names no counter.
  Bytes plain = all.after;
  const std::string_view name = ".reprobe.undo.site";
  const auto at =
      std::search(plain.rbegin(), plain.rend(), as_bytes(name).rbegin(), as_bytes(name).rend());
  REQUIRE(at != plain.rend());
  *at = std::byte{'x'};
  CHECK(AuditFile::found_in(plain) == std::vector<std::string>{"error semaphore-undefined p:n"});
}

TEST_CASE("guards: machines that are not understood") {
  AuditFile other = program(kCompare, 0x100a);
  other.kind.machine = EM_AARCH64;
  const Bytes bytes = other.build();
  const auto file = ElfFile::open(borrowed_source(bytes)).value();
  const auto result = plan_guards(file, read_probes(file), {GuardsTo::site, {}});
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::refused);
}
