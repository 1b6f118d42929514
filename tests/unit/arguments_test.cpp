// The argument grammar. The texts marked with a compiler are what it wrote for sys/sdt.h 4.8
// macros (readelf -n of the object); the rest is marked with the consumer that reads it.
#include "libprobe/notes/arguments.hpp"

#include "catch.hpp"
#include "libprobe/elf/constants.hpp"

namespace {

using namespace reprobe;

// "type kind operand {registers}"
std::string shown(const Argument& argument) {
  static constexpr const char* kKinds[] = {"constant", "register", "memory", "other"};
  std::string text = argument.type.empty() ? "-" : argument.type;
  text += std::string(" ") + kKinds[static_cast<int>(argument.kind)] + " " + argument.operand;
  for (const std::string& name : argument.registers) text += " {" + name + "}";
  return text;
}

void check(std::uint16_t machine, const std::string& text, const std::vector<std::string>& wanted) {
  CAPTURE(machine, text);
  std::vector<std::string> found;
  for (const Argument& argument : parse_arguments(text, machine)) found.push_back(shown(argument));
  CHECK(found == wanted);
}

}  // namespace

TEST_CASE("no arguments") {
  for (const char* text : {"", " ", " \t\n "}) {
    check(EM_X86_64, text, {});
    check(EM_AARCH64, text, {});
  }
}

TEST_CASE("sizes, signs and the floating suffix") {
  const auto sizes = parse_arguments(
      "1@%al -1@%al 2@%ax -4@%eax 8@%rax 8f@%xmm0 -4f@%xmm1 %rax "
      "16@%xmm0 1234567@%al",
      EM_X86_64);
  REQUIRE(sizes.size() == 10);
  const std::vector<std::pair<std::optional<int>, std::string>> wanted{
      {1, "u8"},  {-1, "s8"},  {2, "u16"},         {-4, "s32"},  {8, "u64"},
      {8, "f64"}, {-4, "f32"}, {std::nullopt, ""}, {16, "u128"}, {std::nullopt, ""}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CAPTURE(i);
    CHECK(sizes[i].size == wanted[i].first);
    CHECK(sizes[i].type == wanted[i].second);
  }
}

TEST_CASE("x86-64 arguments") {
  // gcc 12 -O0
  check(EM_X86_64, "-4@$-5 -8@$5000000000", {"s32 constant $-5", "s64 constant $5000000000"});
  check(EM_X86_64, "-4@-84(%rbp) 8@16(%rbp) -2@%di 2@%r8w",
        {"s32 memory -84(%rbp) {rbp}", "u64 memory 16(%rbp) {rbp}", "s16 register %di {di}",
         "u16 register %r8w {r8w}"});
  // gcc 12 -O2
  check(EM_X86_64, "-4@-88(%rsp,%rdx,4) -8@(%rcx,%rax,8) -1@(%r11,%rdx)",
        {"s32 memory -88(%rsp,%rdx,4) {rsp} {rdx}", "s64 memory (%rcx,%rax,8) {rcx} {rax}",
         "s8 memory (%r11,%rdx) {r11} {rdx}"});
  check(EM_X86_64, "-4@-76(%rsp) -4@8+g(%rip) -4@$0 2@6+s(%rip)",
        {"s32 memory -76(%rsp) {rsp}", "s32 memory 8+g(%rip) {rip}", "s32 constant $0",
         "u16 memory 6+s(%rip) {rip}"});
  check(EM_X86_64, "8f@%rax 4f@%edx 8f@gd(%rip) 8f@24(%rdi)",
        {"f64 register %rax {rax}", "f32 register %edx {edx}", "f64 memory gd(%rip) {rip}",
         "f64 memory 24(%rdi) {rdi}"});
  // postgres 15 of Debian
  check(EM_X86_64, "-4@56+CheckpointStats(%rip) -4@NBuffers(%rip)",
        {"s32 memory 56+CheckpointStats(%rip) {rip}", "s32 memory NBuffers(%rip) {rip}"});
  // gcc 12 -mx32
  check(EM_X86_64, "-1@(%eax,%r10d) 8f@24(%edi)",
        {"s8 memory (%eax,%r10d) {eax} {r10d}", "f64 memory 24(%edi) {edi}"});
  // systemtap and gdb
  check(EM_X86_64, "%rdx %rcx 4@$sym 8@foo+4(%rip) 1@%ah 8@%st(1) 8f@%xmm15 8@%fs:-8 4@0x10(%rax)",
        {"- register %rdx {rdx}", "- register %rcx {rcx}", "u32 constant $sym",
         "u64 memory foo+4(%rip) {rip}", "u8 register %ah {ah}", "u64 register %st(1) {st(1)}",
         "f64 register %xmm15 {xmm15}", "u64 memory %fs:-8 {fs}", "u32 memory 0x10(%rax) {rax}"});
  check(EM_X86_64, "8@(,%rax,8) 8@table+8", {"u64 memory (,%rax,8) {rax}", "u64 memory table+8"});
}

TEST_CASE("i386 arguments") {
  // gcc 12 -O2 -m32
  check(EM_386, "-4@8+g@GOTOFF(%eax) -4@arr@GOTOFF(%eax,%ebx,4) 1@%ebp",
        {"s32 memory 8+g@GOTOFF(%eax) {eax}", "s32 memory arr@GOTOFF(%eax,%ebx,4) {eax} {ebx}",
         "u8 register %ebp {ebp}"});
}

TEST_CASE("x86 arguments in Intel syntax hold blanks") {
  // gcc 12 -O2 -masm=intel
  check(EM_X86_64, "8@r11 -4@DWORD PTR 16[rsp] -4@DWORD PTR g[rip+8] -1@BYTE PTR [r11+rdx]",
        {"u64 register r11 {r11}", "s32 memory DWORD PTR 16[rsp] {rsp}",
         "s32 memory DWORD PTR g[rip+8] {rip}", "s8 memory BYTE PTR [r11+rdx] {r11} {rdx}"});
  check(EM_X86_64, "-8@QWORD PTR [rcx+rax*8] 8f@QWORD PTR gd[rip] -2@di",
        {"s64 memory QWORD PTR [rcx+rax*8] {rcx} {rax}", "f64 memory QWORD PTR gd[rip] {rip}",
         "s16 register di {di}"});
}

TEST_CASE("aarch64 arguments hold blanks") {
  // gcc 12 -O0 and -O2
  check(EM_AARCH64, "-4@[sp, 44] 4@[sp, 40] 1@x0 -8@5000000000 -4@-5",
        {"s32 memory [sp, 44] {sp}", "u32 memory [sp, 40] {sp}", "u8 register x0 {x0}",
         "s64 constant 5000000000", "s32 constant -5"});
  check(EM_AARCH64, "-4@[x2] -8@x1 1@[x6, x9] 8f@[x1, 864]",
        {"s32 memory [x2] {x2}", "s64 register x1 {x1}", "u8 memory [x6, x9] {x6} {x9}",
         "f64 memory [x1, 864] {x1}"});
  // systemtap
  check(EM_AARCH64, "4@w3 8f@v0 8@[x0, w1, sxtw 2] 8@[x29, #-16] 4@wzr",
        {"u32 register w3 {w3}", "f64 register v0 {v0}", "u64 memory [x0, w1, sxtw 2] {x0} {w1}",
         "u64 memory [x29, #-16] {x29}", "u32 register wzr {wzr}"});
}

TEST_CASE("arm arguments hold blanks") {
  // gcc 12 -O0 (Thumb) and -O2 -fPIC
  check(EM_ARM, "-4@#-5 -8@#5000000000 -4@[r7, #12] 4@[r7]",
        {"s32 constant #-5", "s64 constant #5000000000", "s32 memory [r7, #12] {r7}",
         "u32 memory [r7] {r7}"});
  check(EM_ARM, "-4@[r4, #-80] -4@[r1, r2, lsl #2] 1@[r5, r0] 4@lr 4f@ip",
        {"s32 memory [r4, #-80] {r4}", "s32 memory [r1, r2, lsl #2] {r1} {r2}",
         "u8 memory [r5, r0] {r5} {r0}", "u32 register lr {lr}", "f32 register ip {ip}"});
  // clang 14: a symbol without a mark says neither address nor contents
  check(EM_ARM, "4@g+12 4@[r0] 4@.L.str",
        {"u32 other g+12", "u32 memory [r0] {r0}", "u32 other .L.str"});
  check(EM_ARM, "-4@[fp, #-8]", {"s32 memory [fp, #-8] {fp}"});
}

TEST_CASE("ppc64 arguments name registers by number") {
  // gcc 12 -O0 and -O2
  check(EM_PPC64, "-4@i9 -8@i5000000000 -4@i-5",
        {"s32 constant i9", "s64 constant i5000000000", "s32 constant i-5"});
  check(EM_PPC64, "-4@3 -4@0 -4@31 -4@0(9) -8@8,5 1@9,3",
        {"s32 register 3 {r3}", "s32 register 0 {r0}", "s32 register 31 {r31}",
         "s32 memory 0(9) {r9}", "s64 memory 8,5 {r8} {r5}", "u8 memory 9,3 {r9} {r3}"});
  // systemtap also knows the named forms (-mregnames)
  check(EM_PPC64, "-4@%r3 8f@%f1 8@112(%r1) 8@sym@toc@l(2) 8@-112(1)",
        {"s32 register %r3 {r3}", "f64 register %f1 {f1}", "u64 memory 112(%r1) {r1}",
         "u64 memory sym@toc@l(2) {r2}", "u64 memory -112(1) {r1}"});
}

TEST_CASE("s390x arguments") {
  // gcc 12 -O2
  check(EM_S390, "-4@%r2 -4@9 -4@-5 -4@172(%r15) -4@160(%r11,%r15) 1@0(%r2,%r10)",
        {"s32 register %r2 {r2}", "s32 constant 9", "s32 constant -5", "s32 memory 172(%r15) {r15}",
         "s32 memory 160(%r11,%r15) {r11} {r15}", "u8 memory 0(%r2,%r10) {r2} {r10}"});
}

TEST_CASE("riscv arguments") {
  // gcc 12 -O0 and -O2
  check(EM_RISCV, "-4@-100(s0) 4@a1 -8@5000000000 -4@-80(t1) 8@t3 8f@856(a5) -4@12(sp)",
        {"s32 memory -100(s0) {s0}", "u32 register a1 {a1}", "s64 constant 5000000000",
         "s32 memory -80(t1) {t1}", "u64 register t3 {t3}", "f64 memory 856(a5) {a5}",
         "s32 memory 12(sp) {sp}"});
  check(EM_RISCV, "8@%lo(a0)(a5)", {"u64 memory %lo(a0)(a5) {a5}"});
}

TEST_CASE("what follows no rule is kept as it stands") {
  check(EM_X86_64, "8@ 8@%rip2 8@%rax)) 4@12 8@%",
        {"u64 other ", "u64 other %rip2 {rip2}", "u64 other %rax)) {rax}", "u32 other 12",
         "u64 other %"});
  check(EM_AARCH64, "8@[] 8@x31 8@[foo, 8]",
        {"u64 other []", "u64 other x31", "u64 other [foo, 8]"});
  check(EM_RISCV, "8@8(q9) 8@()", {"u64 other 8(q9)", "u64 other ()"});
  check(999, "8@%rax [x0, 8]", {"u64 other %rax", "- other [x0, 8]"});
}

TEST_CASE("an unclosed bracket ends before the next sized argument") {
  check(EM_AARCH64, "8@[sp, 8 -4@x0", {"u64 other [sp, 8", "s32 register x0 {x0}"});
  check(EM_X86_64, "8@8(%rax 4@%eax", {"u64 other 8(%rax {rax}", "u32 register %eax {eax}"});
}

TEST_CASE("register numbers outside the machine's range are no registers") {
  for (const auto& [machine, text] :
       std::vector<std::pair<std::uint16_t, std::string>>{{EM_X86_64, "r16"},
                                                          {EM_X86_64, "%r7d"},
                                                          {EM_AARCH64, "x08"},
                                                          {EM_ARM, "r16"},
                                                          {EM_S390, "%r16"},
                                                          {EM_RISCV, "a8"},
                                                          {EM_RISCV, "s12"},
                                                          {EM_PPC64, "%r32"}}) {
    CAPTURE(machine, text);
    const auto found = parse_arguments("8@" + text, machine);
    REQUIRE(found.size() == 1);
    CHECK(found[0].kind != Argument::Kind::registr);
  }
}

TEST_CASE("hostile texts cost linear time") {
  // Each would take minutes if the splitter were quadratic; there is no clock here, ctest's
  // time limit is the check.
  const std::size_t n = 1U << 20;
  CHECK(parse_arguments("8@[" + std::string(n, ' '), EM_AARCH64).size() == 1);
  CHECK(parse_arguments("8@" + std::string(n, '('), EM_X86_64).size() == 1);
  CHECK(parse_arguments(std::string(n, '9') + "@", EM_X86_64).size() == 1);
  std::string many;
  for (std::size_t i = 0; i < n / 8; ++i) many += "8@%rax  ";
  CHECK(parse_arguments(many, EM_X86_64).size() == n / 8);
}
