// Rules about the instruction at the site, and the red zone. The functions are what gcc 12 and
// clang 14 emit for the C in the comments (disassembled by objdump); which of them lose data under
// a 5-byte nop was seen with Linux 6.18.
#include <tuple>

#include "audit_file.hpp"
#include "code_bytes.hpp"
#include "libprobe/audit/redzone.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr std::uint64_t kText = 0x1000;

AuditFile with_code(const std::string& code, std::uint64_t site = kText) {
  AuditFile file;
  file.code = hex(code);
  file.probes = {{.location = site, .provider = "p", .name = "one"}};
  file.symbols = {
      {.name = "f", .value = kText, .size = file.code.size(), .type = STT_FUNC, .shndx = 1}};
  return file;
}

bool may_use(const std::string& code) {
  AuditFile file = with_code(code);
  const Bytes bytes = file.build();
  const auto elf = ElfFile::open(memory_source(bytes));
  REQUIRE(elf);
  Function function;
  function.start = VirtAddr{kText};
  function.size = Size{file.code.size()};
  const RedZoneUse use = may_use_red_zone(*elf, function);
  CAPTURE(use.reason);
  CHECK_FALSE(use.reason.empty());
  return use.may_use;
}

}  // namespace

TEST_CASE("functions that may keep data in the red zone", "[audit]") {
  const char* code = GENERATE(
      // mov %rdi,-8(%rsp); nop5; mov -8(%rsp),%rax; ret
      "48 89 7c 24 f8 0f 1f 44 00 00 48 8b 44 24 f8 c3",
      // sub $0x48,%rsp; mov %rdi,-0x78(%rsp); nop5; add $0x48,%rsp; ret: a frame and the red zone
      "48 83 ec 48 48 89 7c 24 88 0f 1f 44 00 00 48 83 c4 48 c3",
      // with a 32-bit displacement: mov %rdi,-0x100(%rsp)
      "48 89 bc 24 00 ff ff ff c3",
      // -O0: push %rbp; mov %rsp,%rbp; mov %edi,-4(%rbp); nop5; mov -4(%rbp),%eax; pop %rbp; ret
      "55 48 89 e5 89 7d fc 0f 1f 44 00 00 8b 45 fc 5d c3",
      // movaps %xmm0,-0x18(%rsp); ret, and vmovups %ymm0,-0x28(%rsp); ret
      "0f 29 44 24 e8 c3", "c5 fc 11 44 24 d8 c3",
      // an index: mov -0x78(%rsp,%rax,8),%rax; mov (%rsp,%rax,8),%rax
      "48 8b 44 c4 88 c3", "48 8b 04 c4 c3",
      // lea -0x28(%rsp),%rdx; mov %rsp,%rdx; push %rsp; pop %rdx
      "48 8d 54 24 d8 c3", "48 89 e2 c3", "54 5a c3",
      // -pg -mfentry in a leaf: call __fentry__; push %rbp; mov %rsp,%rbp; mov %edi,-4(%rbp)
      "e8 00 00 00 00 55 48 89 e5 89 7d fc 5d c3",
      // endbr64 before it
      "f3 0f 1e fa e8 00 00 00 00 55 48 89 e5 89 7d fc 5d c3",
      // a frame pointer that reaches below rsp in other ways than by -4(%rbp): with an index, as a
      // copy, by subtraction, and where rsp moved up again behind it
      "55 48 89 e5 8b 04 85 00 00 00 00 89 44 85 00 5d c3", "55 48 89 e5 48 8d 45 00 5d c3",
      "55 48 89 e5 48 89 e8 5d c3", "55 48 89 e5 48 29 fd 89 7d 00 5d c3",
      "55 48 83 ec 20 48 89 e5 48 83 c4 20 89 7d 00 5d c3",
      // not instructions at all
      "06 07 c3");
  CAPTURE(code);
  CHECK(may_use(code));
}

TEST_CASE("functions that cannot", "[audit]") {
  const char* code = GENERATE(
      // nop5; lea 1(%rdi),%eax; ret
      "0f 1f 44 00 00 8d 47 01 c3",
      // push %rbp; mov %rsp,%rbp; sub $16,%rsp; mov %edi,-4(%rbp); call; leave; ret
      "55 48 89 e5 48 83 ec 10 89 7d fc e8 00 10 00 00 c9 c3",
      // -fno-omit-frame-pointer in a leaf: push %rbp; mov %rsp,%rbp; mov %edi,%eax; nop5;
      // imul %esi,%eax; pop %rbp; ret
      "55 48 89 e5 89 f8 0f 1f 44 00 00 0f af c6 5d c3",
      // behind endbr64; mov 0x10(%rbp),%rax, an argument on the stack; leave; ret
      "f3 0f 1e fa 55 48 89 e5 0f 1f 44 00 00 48 8b 45 10 c9 c3",
      // a stack argument: mov 8(%rsp),%rax; ret
      "48 8b 44 24 08 c3",
      // sub $24,%rsp; mov %rdi,8(%rsp); mov 8(%rsp),%rax; add $24,%rsp; ret
      "48 83 ec 18 48 89 7c 24 08 48 8b 44 24 08 48 83 c4 18 c3",
      // lea -0x80(%rsp),%rsp makes room
      "48 8d 64 24 80 c3",
      // mov -8(%r12),%rax: the base is %r12, whose number ends as %rsp's does
      "49 8b 44 24 f8 c3",
      // movaps %xmm4,%xmm0: register 4 of another kind
      "0f 28 c4 c3",
      // add $8,%rsp; ret: the opcode's digit, not a register
      "48 83 c4 08 c3");
  CAPTURE(code);
  CHECK_FALSE(may_use(code));
}

TEST_CASE("an unknown function may", "[audit]") {
  const auto elf = ElfFile::open(memory_source(with_code("90 c3").build()));
  REQUIRE(elf);
  CHECK(may_use_red_zone(*elf, std::nullopt).may_use);
  Function function;
  function.start = VirtAddr{kText};
  function.size = Size{2};
  CHECK_FALSE(may_use_red_zone(*elf, function).may_use);
  function.size = Size{0x100000};  // more than the file has
  CHECK(may_use_red_zone(*elf, function).may_use);
  Size budget{1};
  function.size = Size{2};
  CHECK(may_use_red_zone(*elf, function, &budget).may_use);
}

TEST_CASE("a nop that the kernel makes a call of, in a red-zone leaf", "[audit]") {
  // mov %rdi,-8(%rsp); NOP; mov -8(%rsp),%rax; ret
  const auto leaf = [](const std::string& nop) {
    return with_code("48 89 7c 24 f8 " + nop + " 48 8b 44 24 f8 c3", kText + 5);
  };
  // Its children die at an optimised one (nop5-fork): a warning, as nothing in the file forks.
  const Lines error{"error redzone-nop5 p:one", "warning nop5-fork"};
  // Optimised by Linux 6.18.
  CHECK(leaf("0f 1f 44 00 00").found() == error);
  CHECK(leaf("66 66 66 66 90").found() == error);
  CHECK(leaf("0f 1f 44 00 08").found() == error);
  // libbpf attaches to the second.
  CHECK(leaf("90 0f 1f 44 00 00").found() == error);
  // Not optimised: one byte, four, six.
  CHECK(leaf("90").found() == Lines{});
  CHECK(leaf("0f 1f 40 00").found() == Lines{});
  CHECK(leaf("66 0f 1f 44 00 00").found() == Lines{});
  // libbpf/usdt 2026-07: the kernel's call leaves the red zone alone.
  CHECK(leaf("90 66 2e 0f 1f 84 00 00 00 00 00").found() == Lines{});
  // Another machine's kernel does no such thing.
  auto i386 = leaf("0f 1f 44 00 00");
  i386.kind = {.is64 = false, .machine = EM_386};
  CHECK(i386.found() == Lines{});
}

TEST_CASE("a 5-byte nop where the red zone is free", "[audit]") {
  // nop5; xor %eax,%eax; ret
  CHECK(with_code("0f 1f 44 00 00 31 c0 c3").found() == Lines{"warning nop5-fork"});
}

TEST_CASE("prefixes that the kernel refuses", "[audit]") {
  const auto [nop, found] = GENERATE(
      std::pair<const char*, bool>{"3e 0f 1f 40 00", true},
      std::pair<const char*, bool>{"66 2e 0f 1f 84 00 00 00 00 00", true},
      std::pair<const char*, bool>{"2e 90", true}, std::pair<const char*, bool>{"66 90", false},
      std::pair<const char*, bool>{"0f 1f 84 00 2e 3e 00 00", false},
      std::pair<const char*, bool>{"90 66 2e 0f 1f 84 00 00 00 00 00", false});
  CAPTURE(nop);
  AuditFile file = with_code(std::string(nop) + " c3");
  CHECK(file.found() == (found ? Lines{"error site-prefixed-nop p:one"} : Lines{}));
}

TEST_CASE("a 5-byte nop across a page", "[audit]") {
  const auto [address, found] = GENERATE(std::pair<std::uint64_t, bool>{0x1ffb, false},
                                         std::pair<std::uint64_t, bool>{0x1ffc, true},
                                         std::pair<std::uint64_t, bool>{0x1fff, true});
  CAPTURE(address);
  AuditFile file;
  file.code_address = address;
  file.base_address = 0x2800;
  file.code = hex("0f 1f 44 00 00 31 c0 c3");
  file.probes = {{.location = address, .provider = "p", .name = "one"}};
  file.symbols = {{.name = "f", .value = address, .size = 8, .type = STT_FUNC, .shndx = 1}};
  CHECK(file.found() == (found ? Lines{"note site-page-cross p:one"} : Lines{"warning nop5-fork"}));
}
