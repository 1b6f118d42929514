// Arguments in another spelling. What libbpf reads is asked of its own scanner's format strings
// (usdt.c, parse_usdt_arg), run here by sscanf().

#include "libprobe/notes/respell.hpp"

#include <cstdio>
#include <string>

#include "catch.hpp"
#include "libprobe/elf/constants.hpp"

namespace reprobe::test {
namespace {

std::string respelled(const std::string& text) { return respell_arguments(text, EM_X86_64); }

// How many bytes libbpf takes as the first argument, where it is one indexed operand.
int indexed(const std::string& text) {
  int size = 0, length = -1;
  long offset = 0;
  char base[16] = {}, index[16] = {};
  const int found = std::sscanf(text.c_str(), " %d @ %ld ( %%%15[^,] , %%%15[^)] ) %n", &size,
                                &offset, base, index, &length);
  return found == 4 ? length : 0;
}

}  // namespace

TEST_CASE("respell: other spellings of the same operand") {
  const auto [from, to] = GENERATE(table<std::string, std::string>({
      {"8@0x10(%rbp)", "8@16(%rbp)"},
      {"-4@-0x14(%rbp)", "-4@-20(%rbp)"},
      {"4@$0x10", "4@$16"},
      {"8@16+8(%rsp)", "8@24(%rsp)"},
      {"8@-8+16-4(%rsp)", "8@4(%rsp)"},
      {"8@(%rax)", "8@0(%rax)"},
      {"8@(%rax,%rdx,4)", "8@0(%rax,%rdx,4)"},
      {"%rax", "8@%rax"},
      {"%r8d %r15w %r9b %r10", "4@%r8d 2@%r15w 1@%r9b 8@%r10"},
      {"%eax %cx %dl %sil", "4@%eax 2@%cx 1@%dl 1@%sil"},
  }));
  CAPTURE(from);
  CHECK(respelled(from) == to);
  CHECK(respelled(to) == to);
}

TEST_CASE("respell: what is not understood stays byte for byte") {
  const std::string text = GENERATE(
      as<std::string>(), "", " ", "8@%rax  -4@$5", "8f@0x10(%rbp)", "16@0x10(%rbp)", "8@sym(%rip)",
      "8@sym+4(%rip)", "8@010(%rbp)", "%ah", "%xmm0", "%r16", "%r7", "(%rax)", "8@0x(%rbp)",
      "8@+(%rbp)", "8@99999999999999999999(%rax)+1", "8@0xffffffffffffffffff(%rax)", "8@1+(%rax)",
      "8@(,%rax,8)", "8@(%rax,%rdx,3)", "@", "8@");
  CAPTURE(text);
  CHECK(respelled(text) == text);
}

// What Rust's asm! and gcc -masm=intel write; the AT&T side is what gas 2.40 shows of the same
// bytes.
TEST_CASE("respell: Intel syntax") {
  const auto [from, to] = GENERATE(table<std::string, std::string>({
      {"8@rdi", "8@%rdi"},
      {"-4@esi 8@[rdi+8]", "-4@%esi 8@8(%rdi)"},
      {"8@qword ptr [rsp + 16]", "8@16(%rsp)"},
      {"8@[rax + 4*rcx - 16]", "8@-16(%rax,%rcx,4)"},
      {"8@[rcx*2 + rax]", "8@0(%rax,%rcx,2)"},
      {"8@[rcx+rsp]", "8@0(%rsp,%rcx,1)"},
      {"4@DWORD PTR 16[rbp] 8@%rax", "4@16(%rbp) 8@%rax"},
  }));
  CAPTURE(from);
  CHECK(respelled(from) == to);
  CHECK(respelled(to) == to);
}

TEST_CASE("respell: Intel operands that can be read in two ways stay") {
  const std::string text = GENERATE(
      as<std::string>(), "8@5", "8@[5]", "8@dword ptr [rax]", "8@[rip + 8]", "8@[4*rcx]",
      "8@[rsp*2]", "8@[rax+rcx+rdx]", "8@[rax*3]", "8@[rax", "8@rax]", "8@[rax - rcx]",
      "8@[rax + 4294967296]", "8@total", "8@total[rip]", "16@[rax]", "[rax]", "rax", "8@fs:[rax]");
  CAPTURE(text);
  CHECK(respelled(text) == text);
}

TEST_CASE("respell: only machines whose assembler has these spellings") {
  CHECK(respell_arguments("8@0x10(%rbp)", EM_386) == "8@16(%rbp)");
  CHECK(respell_arguments("8@0x10(%rbp)", EM_AARCH64) == "8@0x10(%rbp)");
}

TEST_CASE("respell: a dereference that an indexed operand follows") {
  const std::string text = GENERATE(as<std::string>(), "-4@-16(%rbp) -4@0(%rax,%rdx)",
                                    "8@0(%rax) 4@4(%rbx,%rcx)", "8@8(%r15) 8@-8(%r15,%rax)");
  CAPTURE(text);
  CHECK(indexed(text) > 0);  // libbpf believes in a register called "rbp) -4@0(%rax"
  CHECK(indexed(respelled(text)) == 0);
  CHECK(respelled(respelled(text)) == respelled(text));
  std::string squeezed;
  for (const char c : respelled(text)) {
    if (c != ' ' || squeezed.back() != ' ') squeezed.push_back(c);
  }
  CHECK(squeezed == text);
}

TEST_CASE("respell: a dereference that libbpf reads rightly is not moved") {
  const std::string text = GENERATE(as<std::string>(), "-4@-16(%rbp) 8@%rdi 8@%rsi 4@0(%rax,%rdx)",
                                    "8@0(%rax) 8@$1", "8@0(%rax,%rdx) 8@0(%rcx,%rsi,8)");
  CAPTURE(text);
  CHECK(respelled(text) == text);
}

}  // namespace reprobe::test
