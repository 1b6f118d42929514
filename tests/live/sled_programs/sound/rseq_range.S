// build: gcc -pie
// what: the commit and abort addresses of a restartable sequence: an address inside it is told from others by its range
#include <sys/sdt.h>
.text
.globl f
.type f,@function
f: .cfi_startproc
  mov %rdi,%rax
1: lea 3(%rax),%rax
STAP_PROBE(c, inside)
  mov %rax,value(%rip)
2: lea (%rax,%rax),%rax
  ret
4: xor %eax,%eax
  ret
  .cfi_endproc
.size f,.-f
.section __rseq_cs,"aw"
.balign 32
.globl cs
cs: .long 0, 0
  .quad 1b, 2b-1b, 4b
.data
.globl value
value: .quad 0
.section .note.GNU-stack,"",@progbits
