// build: gcc -pie
// build: gcc -no-pie
// what: a fault table of distances from its own words names a load in front of which a probe stands; behind it is a target
#include <sys/sdt.h>
.text
.globl load_or
.type load_or,@function
load_or: .cfi_startproc
  xor %edx,%edx
STAP_PROBE(c, load)
fault_insn: mov (%rdi), %rax
  lea (%rax,%rdx), %rax
  ret
bad: mov $-3, %rax
  ret
  .cfi_endproc
.size load_or,.-load_or
.section .rodata
.balign 4
.globl fault_table
fault_table: .long fault_insn-., bad-.
.section .note.GNU-stack,"",@progbits
