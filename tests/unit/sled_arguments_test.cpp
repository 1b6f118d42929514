// Arguments that count from the stack pointer, at a place where it is lower.

#include "catch.hpp"
#include "libprobe/rewrite/sled/stack_arguments.hpp"

using reprobe::correct_stack_arguments;

TEST_CASE("only offsets from the stack pointer grow", "[sled]") {
  struct Case {
    const char* before;
    std::int64_t lower;
    const char* after;
  };
  const Case cases[] = {
      {"", 8, ""},
      {"8@%rdx -4@%eax 8@152(%rbx) 1@$0", 8, "8@%rdx -4@%eax 8@152(%rbx) 1@$0"},
      {"8@24(%rsp)", 8, "8@32(%rsp)"},
      {"-4@(%rsp)", 8, "-4@8(%rsp)"},
      {"-4@-8(%rsp) 8@%rsi", 128, "-4@120(%rsp) 8@%rsi"},
      {"-4@-8(%rsp)", 8, "-4@0(%rsp)"},
      {"1@12(%rsp,%rax,4) 8@8(%rbp,%rcx,8)", 8, "1@20(%rsp,%rax,4) 8@8(%rbp,%rcx,8)"},
      {"8@96(%rsp)  2@$4", 136, "8@232(%rsp)  2@$4"},
      {"16(%rsp)", 8, "24(%rsp)"},
      {"4@rsp_copy(%rip)", 8, "4@rsp_copy(%rip)"},
      {"8@%rsp", 0, "8@%rsp"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.before);
    CHECK(correct_stack_arguments(c.before, c.lower).value_or("nothing") == c.after);
  }
}

TEST_CASE("a value that no spelling can give at the new place is refused", "[sled]") {
  for (const char* arguments :
       {"8@%rsp", "4@%esp", "8@%rdi 8@%rsp", "8@8+16(%rsp)", "8@0x10(%rsp)", "8@table(%rsp)",
        "8@2147483647(%rsp)", "8@99999999999999999999(%rsp)", "8@(%rax,%rsp)", "8@%fs:8(%rsp)"}) {
    CAPTURE(arguments);
    CHECK_FALSE(correct_stack_arguments(arguments, 8).has_value());
  }
}
