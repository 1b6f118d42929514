/* A leaf that keeps a value in the red zone across a probe site, and prints how many values came back
 * wrong. NOP: the bytes of the site. */
#include <stdio.h>
#include <stdlib.h>

#define STRING(x) #x
#define BYTES(x) STRING(x)

/* long leaf(long value): stores it at -8(%rsp), passes the site, reloads it. */
__asm__(
    ".text\n" BEFORE
    ".type leaf, @function\n"
    "leaf:\n"
    "  .cfi_startproc\n"
    "  movq %rdi, -8(%rsp)\n"
    "990: " NOP "\n"
    "  movq -8(%rsp), %rax\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size leaf, . - leaf\n"
    ".pushsection .note.stapsdt,\"\",\"note\"\n"
    ".balign 4\n"
    ".4byte 8, 992f - 991f, 3\n"
    ".asciz \"stapsdt\"\n"
    "991: .8byte 990b, _.stapsdt.base, 0\n"
    ".asciz \"traced\", \"leaf\", \"-8@%rdi\"\n"
    "992: .balign 4\n"
    ".popsection\n"
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
    ".weak _.stapsdt.base\n"
    ".hidden _.stapsdt.base\n"
    "_.stapsdt.base: .space 1\n"
    ".size _.stapsdt.base, 1\n"
    ".popsection\n");
long leaf(long value);

int main(int argc, char** argv) {
  long passes = argc > 1 ? atol(argv[1]) : 1, wrong = 0;
  for (long i = 1; i <= passes; ++i) wrong += leaf(i) != i;
  printf("wrong %ld\n", wrong);
  return 0;
}
