// The loops that `reprobe bench` runs, once for each thing that may stand at a probe's site, in a loop
// that stands for real code (each pass needs the one before: 4 cycles) and in a bare one. Each is
// void NAME(unsigned long passes). What a sled's stub holds is what `reprobe sled` writes.

  .section .bss
  .balign 64
counter: .zero 2      // of the check
  .balign 4
slot: .zero 4         // of the slot sled

  .text

// A function's end and its CFI are the same for all: nothing touches the stack.
.macro FUNCTION name
  .balign 64
  .globl \name
  .hidden \name
  .type \name, @function
\name:
  .cfi_startproc
.endm
.macro END name
  ret
  .cfi_endproc
  .size \name, . - \name
.endm
.macro WORK work
.if \work
  imul $3, %rax, %rax
  add $1, %rax
.endif
.endm
.macro REPEAT
  dec %rdi
  jnz 1b
.endm
.macro SITE name
  .globl \name
  .hidden \name
\name:
.endm

.macro LOOPS suffix, work
FUNCTION reprobe_none_\suffix
1: WORK \work
  REPEAT
END reprobe_none_\suffix

FUNCTION reprobe_plain_\suffix
1: WORK \work
SITE reprobe_plain_site_\suffix
  nop
  REPEAT
END reprobe_plain_\suffix

FUNCTION reprobe_nop10_\suffix
1: WORK \work
  jmp 2f
3: REPEAT
  ret
  .balign 16
2:
SITE reprobe_nop10_site_\suffix
  nop
  .byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0
  jmp 3b
  .cfi_endproc
  .size reprobe_nop10_\suffix, . - reprobe_nop10_\suffix

FUNCTION reprobe_nop5_\suffix
1: WORK \work
  jmp 2f
3: REPEAT
  ret
  .balign 16
2:
SITE reprobe_nop5_site_\suffix
  .byte 0x0f, 0x1f, 0x44, 0, 0
  jmp 3b
  .cfi_endproc
  .size reprobe_nop5_\suffix, . - reprobe_nop5_\suffix

FUNCTION reprobe_slot_\suffix
1: WORK \work
  jmp 2f
3: REPEAT
  ret
  .balign 16
2:
  nop
  .byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0
  cmpl $0, slot(%rip)
  jne 4f
  jmp 3b
4: ud2
  .cfi_endproc
  .size reprobe_slot_\suffix, . - reprobe_slot_\suffix

FUNCTION reprobe_check_\suffix
1: WORK \work
  cmpw $0, counter(%rip)
  jne 2f
3: REPEAT
  ret
2: nop
  jmp 3b
  .cfi_endproc
  .size reprobe_check_\suffix, . - reprobe_check_\suffix
.endm

LOOPS real, 1
LOOPS bare, 0

// 64 additions, each of which needs the one before: 64 cycles a pass.
FUNCTION reprobe_cycles
1:
.rept 64
  add $1, %rax
.endr
  REPEAT
END reprobe_cycles

  .section .note.GNU-stack, "", @progbits
