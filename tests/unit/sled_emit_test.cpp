// The bytes of stubs and of the way to them. The expected ones are GNU as's and GNU ld's for the
// assembly beside them at the same addresses.

#include "catch.hpp"
#include "code_bytes.hpp"
#include "elf_builder.hpp"
#include "flow_of_bytes.hpp"
#include "libprobe/rewrite/sled/emit.hpp"
#include "libprobe/rewrite/sled/planner.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr VirtAddr kStart{0x1000}, kStubs{0x5000};

using Targets = std::initializer_list<std::pair<int, TargetKinds>>;

// The function's bytes in a file, with a sled for the site at an offset.
class Emitted {
 public:
  Emitted(const char* code, int site, Targets targets = {}, SledKind kind = SledKind::nop10,
          bool guarded = false, VirtAddr at = kStubs, std::uint64_t padding = 0) {
    const Bytes bytes = hex(code);
    ElfBuilder builder;
    builder.load(PF_R | PF_X, builder.section({.name = ".text",
                                               .flags = SHF_ALLOC | SHF_EXECINSTR,
                                               .addr = kStart.value,
                                               .bytes = bytes}));
    const auto file = ElfFile::open(memory_source(builder.build()));
    REQUIRE(file);
    SledPlanner planner({.kind = kind,
                         .needs_guard = [=](const FunctionFlow&, VirtAddr) { return guarded; },
                         .arguments_fit = [](VirtAddr, std::int64_t) { return true; },
                         .unwinds = [](const StubPlan&) { return true; },
                         .same_row = [](VirtAddr, VirtAddr) { return true; }});
    const VirtAddr address{kStart.value + static_cast<std::uint64_t>(site)};
    planner.add(flow_of(kStart, bytes, targets, padding), std::vector<VirtAddr>{address});
    const SledPlan plan = std::move(planner).finish();
    REQUIRE(plan.sites.size() == 1);
    auto sleds = emit_sleds(*file, plan, kind, at);
    REQUIRE(sleds);
    result_ = std::move(*sleds);
    CHECK(result_.code.size() <= stubs_size(plan, kind).value);
    moved_ = result_.sites.at(address.value);
  }

  [[nodiscard]] bool has_code(const char* expected) const { return result_.code == hex(expected); }
  // The patch at an offset of the function.
  [[nodiscard]] bool has_patch(std::uint64_t offset, const char* expected) const {
    const std::pair patch{VirtAddr{kStart.value + offset}, hex(expected)};
    return std::ranges::find(result_.patches, patch) != result_.patches.end();
  }
  [[nodiscard]] std::size_t patches() const { return result_.patches.size(); }
  [[nodiscard]] std::uint64_t sled() const { return moved_.sled.value; }
  [[nodiscard]] std::int64_t lower() const { return moved_.lower; }

 private:
  EmittedSleds result_;
  MovedSite moved_;
};

// push %rbp; mov %rsp,%rbp; nop; mov %edi,%eax; xor %ecx,%ecx; pop %rbp; ret
constexpr const char* kStraight = "55 4889e5 90 89f8 31c9 5d c3";

}  // namespace

TEST_CASE("a displaced run: sled, instructions, jump back", "[sled]") {
  const Emitted emitted(kStraight, 4);
  // nop; nopw %cs:0x0(%rax,%rax,1); mov %edi,%eax; xor %ecx,%ecx; jmp 0x1009
  CHECK(emitted.has_code("90 662e0f1f840000000000 89f8 31c9 e9f5bfffff"));
  CHECK(emitted.patches() == 1);
  CHECK(emitted.has_patch(4, "e9f73f0000"));  // jmp 0x5000
  CHECK(emitted.sled() == 0x5000);
  CHECK(emitted.lower() == 0);
}

TEST_CASE("a guarded sled lowers the stack pointer around the nop", "[sled]") {
  const Emitted emitted(kStraight, 4, {}, SledKind::nop5, true);
  // lea -128(%rsp),%rsp; nopl 0x0(%rax,%rax,1); lea 128(%rsp),%rsp; ...; jmp 0x1009
  CHECK(emitted.has_code("488d642480 0f1f440000 488da42480000000 89f8 31c9 e9eebfffff"));
  CHECK(emitted.sled() == 0x5005);
  CHECK(emitted.lower() == 128);
}

TEST_CASE("operands relative to the instruction", "[sled]") {
  // nop; mov 0x1107(%rip),%eax; ret
  const Emitted emitted("90 8b0500010000 c3", 0);
  // sled; mov 0x1107(%rip),%eax; jmp 0x1007
  CHECK(emitted.has_code("90 662e0f1f840000000000 8b05f6c0ffff e9f1bfffff"));
  // The nop stays, so that no instruction begins inside of the jump; what is left is int3.
  CHECK(emitted.has_patch(1, "e9fa3f0000 cc"));
}

TEST_CASE("a short conditional jump gets its long form", "[sled]") {
  // test %edi,%edi; nop; jne 0x100a; mov $1,%eax; ret
  const Emitted emitted("85ff 90 7505 b801000000 c3", 2, {{10, kTargetBranch}});
  // sled; jne 0x100a; mov $1,%eax; jmp 0x100a
  CHECK(emitted.has_code("90 662e0f1f840000000000 0f85f9bfffff b801000000 e9efbfffff"));
  // Nops of the same sizes, and the jump where an instruction is long enough.
  CHECK(emitted.has_patch(3, "6690"));
  CHECK(emitted.has_patch(5, "e9f63f0000"));
}

TEST_CASE("a call through a stub", "[sled]") {
  // nop; call 0x2000; ret
  const Emitted nop10("90 e8fa0f0000 c3", 0);
  CHECK(nop10.has_code("90 662e0f1f840000000000 e9f0cfffff"));  // sled; jmp 0x2000
  CHECK(nop10.has_patch(2, "fa3f0000"));                        // call 0x5000
  CHECK(nop10.lower() == 8);
  // What lies below a call's return address is nobody's: no guard.
  const Emitted nop5("90 e8fa0f0000 c3", 0, {}, SledKind::nop5, true);
  CHECK(nop5.has_code("0f1f440000 e9f6cfffff"));
  CHECK(nop5.lower() == 8);
}

TEST_CASE("a short jump to a hole in the padding", "[sled]") {
  // xor %eax,%eax; nop; ret, which a table leads to; padding
  const Emitted emitted("31c0 90 c3 cccccccccccccccc", 2, {{3, kTargetTable}}, SledKind::nop10,
                        false, kStubs, 8);
  CHECK(emitted.has_code("31c0 90 662e0f1f840000000000 e9f1bfffff"));  // ...; jmp 0x1003
  CHECK(emitted.patches() == 2);
  CHECK(emitted.has_patch(0, "eb02 cc"));     // jmp 0x1004
  CHECK(emitted.has_patch(4, "e9f73f0000"));  // jmp 0x5000
  CHECK(emitted.sled() == 0x5002);
}

TEST_CASE("a branch to a target in the window leads into the stub", "[sled]") {
  // jne 0x100c; call 0x2000; nop; xor %eax,%eax; xor %ecx,%ecx; ret
  const Emitted emitted("0f8506000000 e8f50f0000 90 31c0 31c9 c3", 11, {{12, kTargetBranch}});
  CHECK(emitted.has_code("90 662e0f1f840000000000 31c0 31c9 e9fcbfffff"));  // ...; jmp 0x1010
  CHECK(emitted.patches() == 2);
  CHECK(emitted.has_patch(11, "e9f03f0000"));  // jmp 0x5000
  CHECK(emitted.has_patch(2, "05400000"));     // jne 0x500b
}

TEST_CASE("no sled crosses a page", "[sled]") {
  struct Case {
    SledKind kind;
    std::uint64_t at, sled;
  };
  // The ten-byte nop, which stands behind the note's, has its last place at 4086; a nop5 at 4091.
  for (const Case& c :
       {Case{SledKind::nop10, 0x5ff5, 0x5ff5}, Case{SledKind::nop10, 0x5ff6, 0x5fff},
        Case{SledKind::nop10, 0x5fff, 0x5fff}, Case{SledKind::nop5, 0x5ffb, 0x5ffb},
        Case{SledKind::nop5, 0x5ffc, 0x6000}}) {
    CAPTURE(c.at);
    const Emitted emitted(kStraight, 4, {}, c.kind, false, VirtAddr{c.at});
    CHECK(emitted.sled() == c.sled);
  }
}
