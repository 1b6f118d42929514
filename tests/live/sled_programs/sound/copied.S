// build: gcc -O2 -pie
// build: gcc -O0 -pie
// build: gcc -O2 -no-pie
// what: the code between two symbols is copied, and the copy runs
#include <sys/sdt.h>
.text
.globl code_start
.globl code_end
.type code_start,@function
code_start: .cfi_startproc
  mov %rdi,%rax
STAP_PROBE(c, copied)
  lea 5(%rax,%rax,2),%rax
  ret
  .cfi_endproc
.size code_start,.-code_start
.type code_end,@function
code_end: .cfi_startproc
  ret
  .cfi_endproc
.size code_end,.-code_end
.section .note.GNU-stack,"",@progbits
