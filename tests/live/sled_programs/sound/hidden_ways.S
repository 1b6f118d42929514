// build: gcc -pie
// build: gcc -no-pie
// what: ways into a window that stand behind data among the code, in tables with unused words or on both sides of
// what: their base, in labels that are added to in memory, behind calls that return elsewhere; bounds that are none
#include <sys/sdt.h>
#define FUNCTION(name) .text; .skip 64, 0x90; .p2align 5; .globl name; .type name, @function; name: .cfi_startproc; \
  mov %edi, %eax
#define END(name) .cfi_endproc; .size name, . - name
// Two ways into it: behind the nop, and behind the instruction after that.
#define PROBED(name) \
  STAP_PROBE(h, name); .L##name##_1: cwtl; add $1, %eax; .L##name##_2: add $2, %eax; add $4, %eax; \
  lea 5(%rax, %rax, 2), %eax; ret
#define BY_TABLE(table) \
  lea table(%rip), %rdx; movslq (%rdx, %rdi, 4), %rsi; add %rdx, %rsi; jmp *%rsi
    .section .note.GNU-stack,"",@progbits

// movabs takes what follows it, the branches among it.
FUNCTION(shifted)
  test $1, %edi
  jz 1f
  call shifting
  ret
1: PROBED(shifted)
END(shifted)
  .skip 600, 0x90
  .type shifting, @function
shifting: .cfi_startproc
  test $2, %edi
  jz 2f
  jmp 1f
  .byte 0x48, 0xb8
1: jmp .Lshifted_1
  .skip 20, 0x90
2: jmp 3f
  .byte 0x48, 0xb8
3: lea .Lshifted_2(%rip), %rdx
  jmp *%rdx
  .skip 20, 0x90
  .cfi_endproc
  .size shifting, . - shifting

FUNCTION(shifted_near)
  test $1, %edi
  jz 1f
  call shifting_near
  ret
1: PROBED(shifted_near)
END(shifted_near)
  .type shifting_near, @function
shifting_near: .cfi_startproc
  jmp 1f
  .byte 0x48, 0xb8
1: jmp .Lshifted_near_1
  .skip 20, 0x90
  .cfi_endproc
  .size shifting_near, . - shifting_near

// Data behind a call that comes back behind them.
FUNCTION(passes)
  call pass_two
  STAP_PROBE(h, passes)
  cwtl
  add $1, %eax
  add $2, %eax
  lea 5(%rax, %rax, 2), %eax
  ret
END(passes)
FUNCTION(passes_by_pop)
  call pop_and_jump
  STAP_PROBE(h, passes_by_pop)
  cwtl
  add $1, %eax
  lea 5(%rax, %rax, 2), %eax
  ret
END(passes_by_pop)
  .type pass_two, @function
pass_two: .cfi_startproc
  addq $2, (%rsp)
  ret
  .cfi_endproc
  .size pass_two, . - pass_two
  .type pop_and_jump, @function
pop_and_jump: .cfi_startproc
  pop %rdx
  add $2, %rdx
  jmp *%rdx
  .cfi_endproc
  .size pop_and_jump, . - pop_and_jump

FUNCTION(unused_words)
  shl $1, %rdi
  BY_TABLE(.Lunused)
1: PROBED(unused_words)
END(unused_words)
FUNCTION(below_base)
  sub $4, %rdi
  cmp $1, %edi
  jge 1f
  BY_TABLE(.Lbase)
1: PROBED(below_base)
END(below_base)

// What is no comparison's jump, and a store between the comparison and the load.
FUNCTION(not_compared)
  mov $1, %ecx
  cmp $1, %edi
  jrcxz 1f
  BY_TABLE(.Lnot_compared)
1: PROBED(not_compared)
END(not_compared)
FUNCTION(stored_to)
  movd %edi, %xmm0
  lea index(%rip), %rdi
  movl $0, index(%rip)
  pcmpeqd %xmm1, %xmm1
  cmpl $1, index(%rip)
  ja 1f
  maskmovdqu %xmm1, %xmm0
  mov index(%rip), %edi
  BY_TABLE(.Lstored_to)
1: PROBED(stored_to)
END(stored_to)

FUNCTION(added_in_memory)
  lea 1f(%rip), %rdx
  mov %rdx, -8(%rsp)
  test $1, %edi
  jz 2f
  addq $.Ladded_in_memory_1 - 1f, -8(%rsp)
2: jmp *-8(%rsp)
1: PROBED(added_in_memory)
END(added_in_memory)
FUNCTION(added_between)
  lea 1f(%rip), %rdx
  mov %rdx, -8(%rsp)
  mov -8(%rsp), %rdx
  test $1, %edi
  jz 2f
  add $.Ladded_between_2 - 1f, %rdx
2: mov %rdx, -8(%rsp)
  jmp *-8(%rsp)
1: PROBED(added_between)
END(added_between)
  .skip 64, 0x90

  .section .rodata
  .p2align 2
.Lunused:
  .long .Lunused_words_1 - .Lunused, 0, .Lunused_words_1 - .Lunused, 0, .Lunused_words_2 - .Lunused, 0
  .long .Lunused_words_1 - .Lunused, 0, .Lunused_words_2 - .Lunused
  .long .Lbelow_base_1 - .Lbase, .Lbelow_base_2 - .Lbase, .Lbelow_base_1 - .Lbase, .Lbelow_base_2 - .Lbase
.Lbase:
  .long .Lbelow_base_1 - .Lbase, .Lbelow_base_2 - .Lbase
.Lnot_compared:
  .long .Lnot_compared_2 - .Lnot_compared, .Lnot_compared_2 - .Lnot_compared, .Lnot_compared_1 - .Lnot_compared
  .long .Lnot_compared_2 - .Lnot_compared, .Lnot_compared_1 - .Lnot_compared
.Lstored_to:
  .long .Lstored_to_2 - .Lstored_to, .Lstored_to_2 - .Lstored_to, .Lstored_to_1 - .Lstored_to
  .long .Lstored_to_2 - .Lstored_to, .Lstored_to_1 - .Lstored_to
  .bss
  .p2align 4
index: .skip 16
