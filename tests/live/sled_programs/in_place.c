/* Each site has room for a sled already: nothing has to move. */
#include <stdio.h>

#define SITE(name)                                                                              \
  __asm__ volatile(                                                                             \
      "990: .byte 0x0f,0x1f,0x44,0x00,0x00\n.pushsection .note.stapsdt,\"\",\"note\"\n"           \
      ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"      \
      "993: .8byte 990b, _.stapsdt.base, 0\n.asciz \"app\"\n.asciz \"" #name "\"\n.asciz \"\"\n"  \
      "994: .balign 4\n.popsection\n.ifndef _.stapsdt.base\n"                                     \
      ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                     \
      ".weak _.stapsdt.base\n_.stapsdt.base: .space 1\n.popsection\n.endif\n")

/* mold states the file offset 0 for a PT_GNU_RELRO that begins with .tbss. */
static __thread volatile long start;

int main(void) {
  long sum = start;
  for (long i = 0; i < 50; ++i) {
    SITE(first);
    sum = sum * 3 + i;
    SITE(second);
  }
  printf("%ld\n", sum);
  return 0;
}
