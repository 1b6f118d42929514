// build: gcc -no-pie
// sleds: 2
// what: what only looks like an address of f: the displacement of an operand relative to the instruction,
// what: a value in a symbol's name, an address that is no instruction's
#include <sys/sdt.h>
    .section .note.GNU-stack,"",@progbits
    .text
    .globl f
    .type f,@function
f:
    .cfi_startproc
    test %edi, %edi
    js 2f
    lea 1(%rdi), %eax
site:
    STAP_PROBE1(t, first, %rdi)
    imul $77, %eax, %eax
    ret
2:  STAP_PROBE1(t, second, %rdi)
    mov $5, %eax
inside:
    mov $6, %edx
    ret
    .cfi_endproc
    .size f, . - f
    .globl never
    .type never,@function
never:
    .cfi_startproc
    xor %eax, %eax
    test %edi, %edi
    jnz 1f
    .byte 0x48, 0x8b, 0x05 /* mov disp32(%rip), %rax */
    .long site
1:  ret
    .cfi_endproc
    .size never, . - never
    .data
    .balign 4
    .long 0, 0, f + 1, 0, inside + 2, 0
