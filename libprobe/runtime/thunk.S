/* What sleds call: saves the registers, asks reprobe_rt_dispatch(), and gives them back. At entry
 * (%rsp) is the way back into the stub, 8(%rsp) the site, and the stack pointer of the sled is 144
 * bytes above. The stub has left the red zone alone. Every instruction has its row of CFI.
 * x86-64. */
        .text

        .globl  reprobe_rt_thunk
        .hidden reprobe_rt_thunk
        .type   reprobe_rt_thunk, @function
        .p2align 6
reprobe_rt_thunk:
        .cfi_startproc
        /* 8(%rsp) at entry is the site: the caller has pushed it below its own red zone. */
        endbr64
        pushfq                          /* registers.flags */
        .cfi_adjust_cfa_offset 8
        lea     -128(%rsp), %rsp        /* registers.general */
        .cfi_adjust_cfa_offset 128
        mov     %rax, 0(%rsp)
        mov     %rcx, 8(%rsp)
        mov     %rdx, 16(%rsp)
        mov     %rsi, 48(%rsp)
        mov     %rdi, 56(%rsp)
        mov     %r8, 64(%rsp)
        mov     %r9, 72(%rsp)
        mov     %r10, 80(%rsp)
        mov     %r11, 88(%rsp)
        mov     %rbx, 24(%rsp)
        mov     %rbp, 40(%rsp)
        .cfi_rel_offset rbp, 40
        mov     %r12, 96(%rsp)
        mov     %r13, 104(%rsp)
        mov     %r14, 112(%rsp)
        mov     %r15, 120(%rsp)
        lea     280(%rsp), %rax         /* 128 + 8 + 144: the sled's stack pointer */
        mov     %rax, 32(%rsp)
        mov     %rsp, %rdi
        mov     144(%rsp), %rsi
        mov     %rsp, %rbp
        .cfi_def_cfa_register rbp
        and     $-16, %rsp
        testl   $0x400, 128(%rbp)       /* DF: functions are called with it clear */
        jne     .Ldirection
.Lcall:
        call    reprobe_rt_dispatch
        mov     %rbp, %rsp
        .cfi_def_cfa_register rsp
        /* popf costs more than all the rest: the status flags alone have changed. */
        mov     128(%rsp), %eax
        testl   $0x400, %eax
        jne     .Lpopf
        mov     %eax, %ecx
        shr     $11, %eax               /* OF */
        and     $1, %eax
        mov     %cl, %ah                /* SF ZF AF PF CF */
        add     $0x7f, %al
        sahf
        mov     0(%rsp), %rax
        mov     8(%rsp), %rcx
        mov     16(%rsp), %rdx
        mov     40(%rsp), %rbp
        .cfi_restore rbp
        mov     48(%rsp), %rsi
        mov     56(%rsp), %rdi
        mov     64(%rsp), %r8
        mov     72(%rsp), %r9
        mov     80(%rsp), %r10
        mov     88(%rsp), %r11
        lea     136(%rsp), %rsp
        .cfi_adjust_cfa_offset -136
        ret
.Lpopf:
        .cfi_adjust_cfa_offset 136
        .cfi_rel_offset rbp, 40
        mov     0(%rsp), %rax
        mov     8(%rsp), %rcx
        mov     16(%rsp), %rdx
        mov     40(%rsp), %rbp
        .cfi_restore rbp
        mov     48(%rsp), %rsi
        mov     56(%rsp), %rdi
        mov     64(%rsp), %r8
        mov     72(%rsp), %r9
        mov     80(%rsp), %r10
        mov     88(%rsp), %r11
        lea     128(%rsp), %rsp
        .cfi_adjust_cfa_offset -128
        popfq
        .cfi_adjust_cfa_offset -8
        ret
.Ldirection:
        .cfi_adjust_cfa_offset 136
        .cfi_rel_offset rbp, 40
        .cfi_def_cfa_register rbp
        cld
        jmp     .Lcall
        .cfi_endproc
        .size   reprobe_rt_thunk, .-reprobe_rt_thunk

/* void reprobe_rt_saving(void (*call)(void*, const void*), void* argument, size_t size)
 * Calls `call` with the argument and a copy of the processor's extended state of `size` bytes, and
 * gives the state back. size 0: no XSAVEC, FXSAVE is used. The control words that the ABI wants at
 * a call are set: what the program has may trap. */
        .globl  reprobe_rt_saving
        .hidden reprobe_rt_saving
        .type   reprobe_rt_saving, @function
        .p2align 6
reprobe_rt_saving:
        .cfi_startproc
        push    %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset rbp, -16
        mov     %rsp, %rbp
        .cfi_def_cfa_register rbp
        push    %rbx
        .cfi_offset rbx, -24
        push    %r12
        .cfi_offset r12, -32
        mov     %rdx, %rbx
        mov     %rdi, %r11
        mov     %rsi, %r10
        mov     $576, %eax
        test    %rdx, %rdx
        cmove   %rax, %rdx
        sub     %rdx, %rsp
        and     $-64, %rsp
        test    %rbx, %rbx
        je      .Lfxsave
        /* XRSTOR faults on a header with other bits than XSAVEC writes. */
        xor     %eax, %eax
        mov     %rax, 512(%rsp)
        mov     %rax, 520(%rsp)
        mov     %rax, 528(%rsp)
        mov     %rax, 536(%rsp)
        mov     %rax, 544(%rsp)
        mov     %rax, 552(%rsp)
        mov     %rax, 560(%rsp)
        mov     %rax, 568(%rsp)
        mov     $-1, %eax
        mov     $-1, %edx
        xsavec64 (%rsp)
        jmp     .Lsaved
.Lfxsave:
        fxsave64 (%rsp)
.Lsaved:
        mov     %r10, %rdi
        mov     %rsp, %rsi
        mov     %rsp, %r12
        fninit
        movl    $0x1f80, -8(%rsp)
        ldmxcsr -8(%rsp)
        call    *%r11
        mov     %r12, %rsp
        test    %rbx, %rbx
        je      .Lfxrstor
        mov     $-1, %eax
        mov     $-1, %edx
        xrstor64 (%rsp)
        jmp     .Lrestored
.Lfxrstor:
        fxrstor64 (%rsp)
.Lrestored:
        lea     -16(%rbp), %rsp
        pop     %r12
        .cfi_restore r12
        pop     %rbx
        .cfi_restore rbx
        pop     %rbp
        .cfi_restore rbp
        .cfi_def_cfa rsp, 8
        ret
        .cfi_endproc
        .size   reprobe_rt_saving, .-reprobe_rt_saving

/* The objects are compiled with -fcf-protection: this one says so of itself. */
        .section .note.gnu.property, "a"
        .p2align 3
        .long   4, 16, 5
        .asciz  "GNU"
        .long   0xc0000002, 4, 3, 0
        .section .note.GNU-stack, "", @progbits
