// plug:plugged at the last byte of a page, behind which the program "odd half" unmaps its code.
  .text
  .balign 4096
plugged:
  .fill 4095, 1, 0x90
site:
  nop
  ret
  .balign 4096
  .section .stapsdt.base, "aG", "progbits", .stapsdt.base, comdat
  .weak _.stapsdt.base
  .hidden _.stapsdt.base
_.stapsdt.base:
  .space 1
  .section .note.stapsdt, "", "note"
  .balign 4
  .long 8, 2f - 1f, 3
  .asciz "stapsdt"
1:
  .quad site, _.stapsdt.base, 0
  .asciz "plug"
  .asciz "plugged"
  .byte 0
2:
  .balign 4
  .section .note.GNU-stack, "", @progbits
