/* Functions with a stop (int3) in the middle, and by hand the stub that each would get. The stubs
   have no CFI of their own: unwind_test.attach.cpp sends the code there and makes the tables.
   The map: pieces of 4 words, start, size, original, adjustment; a start of 0 ends a stub; then
   what to patch: 0 jmp at the place, 1 call at the place. */
        .macro  begin name
        .globl  \name
        .type   \name, @function
\name:
        .cfi_startproc
        .endm
        .macro  finish name
        .cfi_endproc
        .size   \name, . - \name
        .endm
        .macro  piece start, end, original, adjust=0
        .pushsection .stubmap, "a"
        .quad   \start, \end - \start, \original, \adjust
        .popsection
        .endm
        .macro  patch kind, place, size, stub
        .pushsection .stubmap, "a"
        .quad   0, \kind, \place, \size, \stub
        .popsection
        .endm
        .macro  stub name
        .pushsection .stubs, "ax"
        .globl  \name\().sled
        .type   \name\().sled, @function
\name\().sled:
        .endm
        .macro  endstub name
        .size   \name\().sled, . - \name\().sled
        .popsection
        .endm

        .text

        /* The stack pointer moves within the displaced code. */
        begin   push_inside
        subq    $16, %rsp
        .cfi_adjust_cfa_offset 16
1:      int3
2:      pushq   %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rbx, 0
3:      int3
        movq    %rdi, %rbx
4:      call    called
        popq    %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore %rbx
        addq    $16, %rsp
        .cfi_adjust_cfa_offset -16
        ret
        finish  push_inside
        stub    push_inside
5:      int3
6:      pushq   %rbx
7:      int3
8:      movq    %rdi, %rbx
9:      jmp     4b
        endstub push_inside
        piece   5b, 6b, 1b
        piece   6b, 7b, 2b
        piece   7b, 8b, 3b
        piece   8b, push_inside_end, 3b
        patch   0, 1b, 4b-1b, 5b
        .pushsection .stubs, "ax"
push_inside_end:
        .popsection

        /* The call goes to the stub, which jumps on: the return address is already pushed. */
        begin   call_target
        pushq   %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rbp, 0
1:      int3
2:      call    called
        popq    %rbp
        .cfi_adjust_cfa_offset -8
        .cfi_restore %rbp
        ret
        finish  call_target
        stub    call_target
3:      int3
        jmp     called
4:
        endstub call_target
        piece   3b, 4b, 1b, 8
        patch   1, 1b, 2b-1b, 3b

        /* A leaf with data in the red zone; the sled stands between two lea. */
        begin   guarded_leaf
        movq    %rdi, -8(%rsp)
1:      int3
2:      movq    -8(%rsp), %rax
3:      ret
        finish  guarded_leaf
        stub    guarded_leaf
4:      leaq    -128(%rsp), %rsp
5:      int3
        leaq    128(%rsp), %rsp
6:      movq    -8(%rsp), %rax
        jmp     3b
7:
        endstub guarded_leaf
        /* The row of the guard holds from behind the first lea on. */
        piece   4b, 5b, 1b
        piece   5b, 6b, 1b, 128
        piece   6b, 7b, 2b
        patch   0, 1b, 3b-1b, 4b

        /* The CFA counts from the frame pointer, as an expression: a realigned stack. */
        begin   frame_pointer
        pushq   %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rbp, 0
        movq    %rsp, %rbp
        .cfi_escape 0x0f, 2, 0x76, 16
        andq    $-64, %rsp
        subq    $64, %rsp
1:      int3
2:      movq    %rdi, 8(%rsp)
3:      movq    8(%rsp), %rdi
        call    called
        leave
        .cfi_def_cfa %rsp, 8
        .cfi_restore %rbp
        ret
        finish  frame_pointer
        stub    frame_pointer
4:      int3
5:      movq    %rdi, 8(%rsp)
        jmp     3b
6:
        endstub frame_pointer
        piece   4b, 5b, 1b
        piece   5b, 6b, 2b
        patch   0, 1b, 3b-1b, 4b

        /* Room for the tables. */
        .section .stub_eh_frame, "a"
        .balign 8
        .globl stub_eh_frame
stub_eh_frame:
        .zero   0x1000
        .section .stub_hdr, "a"
        .balign 8
        .zero   0x10000
        .section .debug_frame
        .balign 8
        .zero   0x1000
        .section .note.GNU-stack, "", @progbits
