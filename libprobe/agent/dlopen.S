/* void* dlopen(const char* file, int mode) of a program with the agent: what the library that it opens
 * holds is attached to before it returns, not when somebody looks. dlopen(3) takes its caller for the
 * one whose RUNPATH and $ORIGIN a name without a folder is looked up by: such a call is passed on by a
 * jump, as if it came from the caller itself. */
  .text
  .globl dlopen
  .type dlopen, @function
dlopen:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call reprobe_agent_opens
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testl %eax, %eax
  jnz reprobe_agent_open
  jmp *reprobe_agent_dlopen(%rip)
  .cfi_endproc
  .size dlopen, . - dlopen
  .section .note.GNU-stack, "", @progbits
