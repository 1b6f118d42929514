// Which operands each consumer reads. The x86-64 table was measured with the tools, a probe per
// operand in a program that ran under them: gdb 13.1, bcc's tplist, libbpf 1.1, perf 6.1.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "catch.hpp"
#include "libprobe/elf/constants.hpp"
#include "libprobe/tracers/arguments.hpp"
#include "libprobe/tracers/reasons.hpp"
#include "libprobe/tracers/text_scan.hpp"

namespace {

using namespace reprobe;
using namespace reprobe::consumers;

// The number of the first argument that is not read; 0: all are.
std::size_t unread(ArgumentRule rule, std::string_view text, std::uint16_t machine) {
  const auto fault = rule(text, machine);
  return fault ? fault->number : 0;
}

struct Row {
  std::string_view text;
  // first unread argument
  std::size_t gdb, bcc, libbpf_1_1, perf;
};

constexpr Row kMeasured[] = {
    {"8@%rax", 0, 0, 0, 0},
    {"4@%eax", 0, 0, 0, 0},
    {"1@%al", 0, 0, 0, 0},
    {"1@%ah", 0, 1, 1, 1},  // perf reads al instead
    {"2@%r8w", 0, 0, 0, 0},
    {"1@%r8b", 1, 0, 0, 0},  // gdb's name of it is r8l
    {"1@%r8l", 0, 1, 1, 1},
    {"4@%r8d", 0, 0, 0, 0},
    {"4@%sil", 0, 0, 0, 0},
    {"8@%rip", 0, 0, 0, 1},
    {"-4@$-1", 0, 0, 0, 1},
    {"4@$4294967295", 0, 0, 0, 1},
    {"8@$0x10", 1, 0, 0, 1},  // libbpf: see below
    {"8@(%rsp)", 0, 0, 0, 0},
    {"8@0(%rsp)", 0, 0, 0, 0},
    {"-4@-16(%rbp)", 0, 0, 0, 0},
    {"8@8+8(%rsp)", 1, 1, 1, 1},
    {"8@1+2+3(%rsp)", 0, 1, 1, 1},
    {"8@0x8(%rsp)", 1, 0, 1, 1},
    {"8@(%rax,%rdx)", 0, 0, 1, 1},
    {"8@(%rax,%rdx,4)", 0, 0, 1, 1},
    {"8@8(%rax,%rdx,4)", 0, 0, 1, 1},
    {"8@(,%rax,8)", 1, 1, 1, 1},
    {"8f@%xmm0", 1, 1, 1, 1},
    {"8@%xmm0", 0, 1, 1, 1},  // bcc reads 0
    {"16@%rax", 1, 1, 1, 1},  // bpftrace 0.17 aborts
    {"3@%eax", 1, 1, 1, 0},
    {"%rax", 0, 0, 1, 0},
    {"$5", 0, 0, 1, 1},
    {"+4@%eax", 1, 1, 0, 0},
    {"8@s(%rip)", 1, 0, 1, 1},
    {"8@s+8(%rip)", 1, 0, 1, 1},
    {"8@8+s(%rip)", 1, 0, 1, 1},
    {"8@$s", 1, 1, 1, 1},
    {"8@s", 1, 1, 1, 1},
    {"8@%fs:8(%rax)", 1, 1, 1, 1},
    {"-4@-16(%rbp) -4@(%rax,%rdx)", 0, 0, 2, 2},
    {"8@-8(%rsp) 8@%rbx", 0, 0, 0, 0},
    {"", 0, 0, 0, 0},
};

}  // namespace

TEST_CASE("operands of x86-64 as the tools read them") {
  for (const Row& row : kMeasured) {
    CAPTURE(std::string(row.text));
    CHECK(unread(gdb_arguments, row.text, EM_X86_64) == row.gdb);
    CHECK(unread(bcc_arguments, row.text, EM_X86_64) == row.bcc);
    CHECK(unread(bpftrace_0_17_arguments, row.text, EM_X86_64) == row.bcc);
    CHECK(unread(perf_arguments, row.text, EM_X86_64) == row.perf);
    if (row.text != "8@$0x10") {
      CHECK(unread(libbpf_1_1_arguments, row.text, EM_X86_64) == row.libbpf_1_1);
    }
  }
  // "$%ld" reads the 0 and leaves "x10" for the next argument.
  CHECK(unread(libbpf_1_1_arguments, "8@$0x10", EM_X86_64) == 2);
}

TEST_CASE("libbpf reads indexed operands since 1.7, and runs over a parenthesis") {
  CHECK(unread(libbpf_arguments, "8@(%rax,%rdx)", EM_X86_64) == 0);
  CHECK(unread(libbpf_arguments, "-8@-16(%rax,%rdx,8) 4@%eax", EM_X86_64) == 0);
  CHECK(unread(libbpf_arguments, "8@(%rax,%rdx,3)", EM_X86_64) == 1);
  // -ENOENT for the register "rbp) -4@(%rax"
  const auto fault = libbpf_arguments("-4@-16(%rbp) -4@(%rax,%rdx)", EM_X86_64);
  REQUIRE(fault);
  CHECK(fault->number == 1);
  CHECK(fault->reason == reason::argument_order);
  // Far enough apart the scanner stops.
  CHECK(unread(libbpf_arguments, "-4@-16(%rbp) 8@%rax 8@%rbx 8@(%rax,%rdx)", EM_X86_64) == 0);
  // 12 are taken, and no more
  std::string many;
  for (int i = 0; i < 12; ++i) many += "8@%rax ";
  CHECK(unread(libbpf_arguments, many, EM_X86_64) == 0);
  const auto thirteenth = libbpf_arguments(many + "8@%rax", EM_X86_64);
  REQUIRE(thirteenth);
  CHECK(thirteenth->number == 13);
  CHECK(thirteenth->reason == reason::too_many_arguments);
}

TEST_CASE("why an operand is not read") {
  const auto why = [](ArgumentRule rule, std::string_view text) {
    const auto fault = rule(text, EM_X86_64);
    return std::string(fault ? fault->reason : "");
  };
  CHECK(why(libbpf_arguments, "8@s(%rip)") == "argument-symbol");
  CHECK(why(libbpf_arguments, "8@$s") == "argument-symbol");
  CHECK(why(libbpf_arguments, "8f@%xmm0") == "argument-size");
  CHECK(why(libbpf_arguments, "8@%xmm0") == "argument-register");
  CHECK(why(libbpf_arguments, "16@%rax") == "argument-size");
  CHECK(why(libbpf_1_1_arguments, "8@(%rax,%rdx)") == "argument-index");
  CHECK(why(gdb_arguments, "1@%r8b") == "argument-register");
  CHECK(why(gdb_arguments, "8@8+8(%rsp)") == "argument-operand");
  CHECK(why(perf_arguments, "8@$5") == "argument-constant");
  CHECK(why(perf_arguments, "16@%rax") == "argument-stops-scan");
  CHECK(why(systemtap_arguments, "8@$0x10") == "argument-operand");
  // Every consumer gives a floating-point argument the same reason, whatever its operand is.
  for (ArgumentRule* rule : {libbpf_arguments, bcc_arguments, gdb_arguments}) {
    CHECK(why(rule, "8f@48(%rsp)") == "argument-size");
    CHECK(why(rule, "8f@(%r15,%rcx)") == "argument-size");
    CHECK(why(rule, "-8@%fs:16(%rdx)") == "argument-operand");
    CHECK(why(rule, "-4@%fs:ex@tpoff") == "argument-operand");
    CHECK(why(rule, "-4@QWORD PTR sg[rip+4]") == "argument-operand");
  }
}

TEST_CASE("SystemTap reads what compilers print") {
  for (const std::string_view text :
       {"8@%rax", "1@%ah", "1@%r8b", "8@%xmm0", "8f@%xmm0", "8@8+8(%rsp)", "8@s+8(%rip)", "8@s",
        "8@8+s(%rip)", "-4@(%rax,%rdx,4)", "4@$-7", "%rax", "8@%st(1)"}) {
    CAPTURE(std::string(text));
    CHECK(unread(systemtap_arguments, text, EM_X86_64) == 0);
  }
  CHECK(unread(systemtap_arguments, "8@%rax 8@$0x10", EM_X86_64) == 2);
  CHECK(unread(systemtap_arguments, "8@[x0, x1] 4@w2 8@5", EM_AARCH64) == 0);
  CHECK(unread(systemtap_arguments, "8@9 4@i7 8@8(31) 8@9,3", EM_PPC64) == 0);
}

// usdt.c and usdt_args.cc, for machines that are not here to be tried.
TEST_CASE("operands of other machines") {
  struct Other {
    std::uint16_t machine;
    std::string_view text;
    std::size_t libbpf, bcc, gdb;
  };
  constexpr Other kRows[] = {
      {EM_AARCH64, "-4@[sp, 12] 8@x0 4@7", 0, 0, 0},
      {EM_AARCH64, "8@[x1]", 0, 0, 0},
      {EM_AARCH64, "4@w0", 1, 1, 0},
      {EM_AARCH64, "8@[x0, x1]", 1, 0, 1},
      {EM_AARCH64, "8@x31", 1, 0, 1},
      {EM_S390, "-8@%r2 8@160(%r15) 4@7", 0, 0, 0},
      {EM_S390, "8@%r16", 1, 1, 1},
      {EM_S390, "8@8(%r1,%r2)", 1, 0, 1},
      {EM_RISCV, "-8@a0 8@-88(s0) 4@5", 0, 0, 1},
      {EM_RISCV, "8@fa0", 1, 1, 1},
      {EM_PPC64, "8@9 4@i7 8@8(31)", 1, 0, 0},
      {EM_PPC64, "8@9,3", 1, 0, 1},
      {EM_ARM, "-4@[fp, #-16] 4@r3 4@#7", 0, 1, 0},
  };
  for (const Other& row : kRows) {
    CAPTURE(std::string(row.text), row.machine);
    CHECK(unread(libbpf_arguments, row.text, row.machine) == row.libbpf);
    CHECK(unread(bcc_arguments, row.text, row.machine) == row.bcc);
    CHECK(unread(gdb_arguments, row.text, row.machine) == row.gdb);
  }
  CHECK(unread(libbpf_1_1_arguments, "4@r3", EM_ARM) == 1);
  CHECK(unread(bpftrace_0_17_arguments, "8@[x0, x1]", EM_AARCH64) == 1);
  CHECK(unread(bpftrace_0_17_arguments, "8@a0", EM_RISCV) == 1);
  CHECK(unread(perf_arguments, "8@x3 -4@[sp, 12]", EM_AARCH64) == 0);
  CHECK(unread(perf_arguments, "8@%r2", EM_S390) == 1);
}

TEST_CASE("hostile argument texts end") {
  std::string blanks(100000, ' ');
  std::string digits(100000, '9');
  for (const std::string& text : std::vector<std::string>{
           blanks, digits, "8@" + digits, "8@(%" + digits, "8@$" + digits + "(", "-", "@", "8@",
           "8@[", "8@(%rax,%rdx", std::string("8@%rax\x80\xff"), "8@-", "8@+", "8@%", "0x@1",
           "8@0x"}) {
    for (const std::uint16_t machine :
         {EM_X86_64, EM_AARCH64, EM_PPC64, EM_S390, EM_RISCV, EM_ARM, std::uint16_t{8}}) {
      for (ArgumentRule* rule :
           {libbpf_arguments, libbpf_1_1_arguments, bcc_arguments, bpftrace_0_17_arguments,
            gdb_arguments, systemtap_arguments, perf_arguments}) {
        const auto fault = rule(text, machine);
        CHECK((!fault || fault->number >= 1));
      }
    }
  }
}

// What scanf(3) itself gives, with which libbpf reads the size.
TEST_CASE("a size that does not fit an int is read as scanf reads it", "[consumers]") {
  for (const std::string text :
       {"8", "-8", "-9223372036854775808", "9223372036854775807", "18446744073709551624",
        "4294967304", "-4294967304", "2147483648", "-2147483656", "99999999999999999999999"}) {
    INFO(text);
    int size = 0;
    REQUIRE(std::sscanf(text.c_str(), "%d", &size) == 1);
    CHECK(TextScan(text).int_number() == size);
    const bool usual = size == 8 || size == -8 || size == -1;
    CHECK(libbpf_arguments(text + "@%rax", EM_X86_64).has_value() == !usual);
  }
}

// What strtol(3) itself gives; it is asked here, so that the expectation is not ours.
TEST_CASE("numbers at and over the limits of long are read as strtol reads them", "[consumers]") {
  for (const std::string text :
       {"-9223372036854775808@%rax", "-9223372036854775807", "9223372036854775807",
        "9223372036854775808", "18446744073709551615", "-18446744073709551615",
        "99999999999999999999999", "-99999999999999999999999", "0"}) {
    INFO(text);
    CHECK(TextScan(text).number() == std::strtol(text.c_str(), nullptr, 10));
  }
}
