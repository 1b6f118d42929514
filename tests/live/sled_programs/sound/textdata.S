// build: gcc -pie -DIN=1
// build: gcc -no-pie -DIN=0
// build: gcc -pie -DIN=0 -DNOCFI
// what: constants in text behind a ret, read by mov (no lea): 0xcc.. (bit reversal mask), 0x90..; IN: inside .size
#include <sys/sdt.h>
#ifdef NOCFI
#define SP
#define EP
#else
#define SP .cfi_startproc
#define EP .cfi_endproc
#endif
.text
.globl masked
.type masked,@function
masked: SP
  mov .Lmask(%rip), %rax
  and %rdi, %rax
STAP_PROBE(c, masked)
  ret
#if !IN
  EP
  .size masked, .-masked
#endif
.Lmask: .quad 0xcccccccccccccccc
#if IN
  EP
  .size masked, .-masked
#endif
.p2align 4
.globl masked2
.type masked2,@function
masked2: SP
  mov %rdi, %rax
STAP_PROBE(c, masked2)
  xor .Lmask2(%rip), %rax
  jmp 1f
#if !IN
  EP
  .size masked2, .-masked2
#endif
.Lmask2: .quad 0x9090909090909090
1:
#if !IN
#endif
  not %rax
  ret
#if IN
  EP
  .size masked2, .-masked2
#endif
.globl main
.type main,@function
main: .cfi_startproc
  push %rbx
  .cfi_adjust_cfa_offset 8
  mov $0x123456789abcdef0, %rdi
  call masked
  mov %rax, %rdi
  call masked2
  mov %rax, %rsi
  lea fmt(%rip), %rdi
  xor %eax,%eax
  call printf@PLT
  xor %eax,%eax
  pop %rbx
  .cfi_adjust_cfa_offset -8
  ret
  .cfi_endproc
.size main,.-main
.section .rodata
fmt: .asciz "%lx\n"
.section .note.GNU-stack,"",@progbits
