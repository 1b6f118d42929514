/* Probe sites whose surroundings decide what can become of them: sled_windows_test.py knows the
 * tactic or the reason of each. Every function takes and gives a long (windows.cc calls them); the
 * name of its probe begins with its own. Probes pass the argument. */
#include <sys/sdt.h>

#define PROBE(name) DTRACE_PROBE1(window, name, -8@%rdi)
#define PROBE0(name) DTRACE_PROBE(window, name)
#define ROOM .skip 8, 0xcc

#ifdef __CET__
#define ENTRY endbr64
#else
#define ENTRY
#endif

	.section .note.GNU-stack,"",@progbits

/* No room behind a function but what it asks for. */
	.macro FUNCTION name
	.text
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
	ENTRY
	.endm

	.macro END name
	.cfi_endproc
	.size \name, . - \name
	.endm

/* The table's entries lie directly behind the sites: blocks of one byte. */
FUNCTION table_one
	cmpl	$3, %edi
	ja	9f
	movl	%edi, %eax
	leaq	.Lrelative(%rip), %rdx
	movslq	(%rdx,%rax,4), %rax
	addq	%rdx, %rax
#ifdef __CET__
	notrack
#endif
	jmp	*%rax
.Lone0:	PROBE(table_one_first)
.Lone1:	PROBE(table_one_second)
.Lone2:	PROBE(table_one_long)
	leaq	5(%rdi,%rdi,8), %rax
	ret
.Lone3:	leaq	3(%rdi), %rax
	ret
9:	movl	$77, %eax
	ret
END table_one
	.section .rodata
	.balign 4
.Lrelative:
	.long	.Lone0 - .Lrelative, .Lone1 - .Lrelative, .Lone2 - .Lrelative, .Lone3 - .Lrelative

/* Whole addresses: relocations in a PIE, words that anything may read in a program at a fixed
 * place. Before each site stands room for a jump up to the next entry, or not quite. */
FUNCTION table_whole
	xorl	%eax, %eax
	cmpq	$3, %rdi
	ja	9f
#ifdef __PIC__
	leaq	.Lwhole(%rip), %rdx
#ifdef __CET__
	notrack
#endif
	jmp	*(%rdx,%rdi,8)
#else
#ifdef __CET__
	notrack
#endif
	jmp	*.Lwhole(,%rdi,8)
#endif
.Lw0:	leaq	1(%rdi,%rax), %rax
	PROBE(table_whole_six)
.Lw1:	leaq	2(%rax), %rax
	PROBE(table_whole_five)
.Lw2:	addl	%edi, %eax
	PROBE(table_whole_three)
.Lw3:	leaq	(%rax,%rdi,4), %rax
	ret
9:	movl	$78, %eax
	ret
	ROOM
END table_whole
	.section .data.rel.ro,"aw"
	.balign 8
.Lwhole:
	.quad	.Lw0, .Lw1, .Lw2, .Lw3

/* Labels whose addresses code takes and keeps: a computed goto without a table. */
FUNCTION label_taken
	leaq	.Lt0(%rip), %rax
	leaq	.Lt1(%rip), %rdx
	testb	$1, %dil
	cmovnz	%rdx, %rax
	movq	%rax, -24(%rsp)
	xorl	%eax, %eax
#ifdef __CET__
	notrack
#endif
	jmp	*-24(%rsp)
.Lt0:	PROBE(label_taken_one)
.Lt1:	PROBE(label_taken_free)
	leaq	9(%rdi,%rax,2), %rax
	ret
END label_taken

/* Symbols: another function's entry, a label that the symbol table names. */
FUNCTION symbol_in
	movl	%edi, %eax
	PROBE(symbol_in_short)
	.globl symbol_entry
	.type symbol_entry, @function
symbol_entry:
	leal	7(%rdi), %eax
	cltq
	ret
	ROOM
	.size symbol_entry, . - symbol_entry
END symbol_in

FUNCTION symbol_label
	jmp	symbol_label_named
	.skip	200, 0xcc
	PROBE(symbol_label_dead)
symbol_label_named:
	PROBE(symbol_label_two)
	leaq	11(%rdi), %rax
	ret
END symbol_label

/* Two sites in one window, and one that stands in another's way when it gets no sled. */
FUNCTION twins
	PROBE(twins_a)
	PROBE(twins_b)
	leaq	4(%rdi,%rdi), %rax
	ret
END twins

/* An indirect call arrives behind the site. */
FUNCTION endbr_after
	addl	$1, %edi
	PROBE(endbr_after)
	.globl endbr_inner
	.type endbr_inner, @notype
endbr_inner:
	endbr64
	leaq	13(%rdi), %rax
	ret
END endbr_after

/* No symbol and nothing that takes its address: only the instruction itself tells. */
FUNCTION endbr_bare
	addl	$1, %edi
	PROBE(endbr_bare)
	endbr64
	leaq	15(%rdi), %rax
	ret
END endbr_bare

/* Blocks of one byte between direct branches, with long and short forms. */
FUNCTION block_long
	leaq	(%rdi,%rdi), %rax
	testb	$1, %dil
	.byte	0x0f, 0x85		/* jnz with 32 bits */
	.long	1f - . - 4
	testb	$2, %dil
	.byte	0x0f, 0x85
	.long	2f - . - 4
	subq	$3, %rax
1:	PROBE(block_long)
2:	leaq	1(%rax,%rdi), %rax
	ret
END block_long

FUNCTION block_short
	leaq	(%rdi,%rdi), %rax
	testb	$1, %dil
	jnz	1f
	testb	$2, %dil
	jnz	2f
	subq	$3, %rax
1:	PROBE(block_short)
2:	leaq	1(%rax,%rdi), %rax
	ret
END block_short

/* A jump over a prefix: its target lies in an instruction. */
FUNCTION prefix
	movq	%rdi, -8(%rsp)
	leaq	3(%rdi), %rax
	testb	$1, %dil
	PROBE(prefix_before)
	je	1f + 1
1:	lock xaddq %rax, -8(%rsp)
	addq	-8(%rsp), %rax
	ret
END prefix

FUNCTION prefix_in
	movq	%rdi, -8(%rsp)
	leaq	3(%rdi), %rax
	testb	$1, %dil
	je	1f + 1
	PROBE(prefix_in)
1:	lock xaddq %rax, -8(%rsp)
	addq	-8(%rsp), %rax
	ret
END prefix_in

/* What no stub may hold. */
FUNCTION repeated
	leaq	-64(%rsp), %rdx
	movq	%rdi, -64(%rsp)
	movq	%rdi, %rsi
	leaq	-64(%rsp), %rdi
	movl	$0x55, %eax
	movl	$3, %ecx
	PROBE0(repeated_before)
	rep stosb
	movq	%rsi, %rdi
	movq	(%rdx), %rax
	ret
END repeated

FUNCTION repeated_only
	leaq	-64(%rsp), %rdx
	movq	%rdi, -64(%rsp)
	movq	%rdi, %rsi
	leaq	-64(%rsp), %rdi
	movl	$0x55, %eax
	movl	$3, %ecx
	jmp	1f
	.skip	200, 0xcc
1:	PROBE0(repeated_only)
	rep stosb
	movq	%rsi, %rdi
	movq	(%rdx), %rax
	jmp	2f
	.skip	200, 0xcc
2:	ret
END repeated_only

FUNCTION counted
	movq	%rdi, %rcx
	andl	$7, %ecx
	leaq	1(%rcx), %rcx
	xorl	%eax, %eax
1:	leaq	(%rax,%rcx,2), %rax
	PROBE(counted_loop)
	loop	1b
	jrcxz	2f
	xorl	%eax, %eax
2:	ret
END counted

/* Flags live across the site; branches of both directions in the window. */
FUNCTION flags
	xorl	%eax, %eax
1:	incq	%rax
	cmpq	%rdi, %rax
	PROBE(flags_live)
	jl	1b
	testq	%rdi, %rdi
	PROBE(flags_forward)
	js	2f
	addq	$100, %rax
2:	ret
END flags

/* The jump back leads to the window's first byte. */
FUNCTION tight
	movq	%rdi, %rax
	andl	$15, %edi
	incl	%edi
1:	PROBE(tight)
	decl	%edi
	jnz	1b
	ret
END tight

/* Operands relative to the instruction, some with an immediate behind them. */
FUNCTION relative
	movq	%rdi, cell(%rip)
	PROBE(relative_store)
	cmpl	$3, cell(%rip)
	PROBE(relative_compare)
	sete	%al
	movzbl	%al, %eax
	PROBE(relative_add)
	addq	cell(%rip), %rax
	movw	$0x1234, cell(%rip)
	PROBE(relative_word)
	addq	cell(%rip), %rax
	ret
END relative
	.local cell
	.comm cell, 8, 8

/* Calls: direct behind the site, through a register, and one whose return address is a window's
 * first byte. */
FUNCTION calls
	pushq	%rbx
	.cfi_adjust_cfa_offset 8
	.cfi_offset %rbx, -16
	movq	%rdi, %rbx
	PROBE(calls_direct)
	call	symbol_entry@PLT
	PROBE(calls_returned)
	movq	%rbx, %rdi
	addq	%rax, %rbx
	leaq	twins(%rip), %rax
	PROBE(calls_indirect)
	call	*%rax
	addq	%rbx, %rax
	popq	%rbx
	.cfi_adjust_cfa_offset -8
	.cfi_restore %rbx
	PROBE(calls_tail)
	jmp	*later(%rip)
END calls
	.data
	.balign 8
later:	.quad	finish
FUNCTION finish
	leaq	1(%rax), %rax
	ret
END finish

/* The call's return address is the window's only room: nothing but the site may move. */
FUNCTION calls_short
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	leaq	twins(%rip), %rax
	call	*%rax
	PROBE(calls_short)
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	ret
END calls_short

/* Everything that pushes and pops, with rows of its own for each. */
FUNCTION pushes
	pushq	%rbp
	.cfi_adjust_cfa_offset 8
	.cfi_offset %rbp, -16
	PROBE(pushes_one)
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
	PROBE(pushes_two)
	pushq	%r12
	.cfi_offset %r12, -24
	PROBE(pushes_three)
	leaq	(%rdi,%rdi), %r12
	movq	%r12, %rax
	PROBE(pushes_four)
	popq	%r12
	.cfi_restore %r12
	PROBE(pushes_five)
	popq	%rbp
	.cfi_def_cfa %rsp, 8
	.cfi_restore %rbp
	PROBE(pushes_six)
	ret
	ROOM
END pushes

/* Two bytes, and room behind them. */
FUNCTION two_padded
	PROBE(two_padded)
	ret
	ROOM
END two_padded

/* The landing pad of the call stands directly behind a site, which other control passes too. */
FUNCTION lands
	.cfi_personality 0x9b, DW.ref.__gxx_personality_v0
	.cfi_lsda 0x1b, .Llsda
	pushq	%rbx
	.cfi_adjust_cfa_offset 8
	.cfi_offset %rbx, -16
	movq	%rdi, %rbx
.Lcall:	call	thrower@PLT
.Lback:	movq	%rax, %rbx
	testb	$1, %al
	jz	1f
	xorl	%eax, %eax
	jmp	.Lsite
	.skip	200, 0xcc
.Lsite:	PROBE0(lands_one)
.Lpad:	PROBE0(lands_pad)
	movq	%rax, %rdi
	testq	%rax, %rax
	jz	1f
	call	_Unwind_Resume@PLT
1:	leaq	1(%rbx), %rax
	popq	%rbx
	.cfi_adjust_cfa_offset -8
	.cfi_restore %rbx
	ret
END lands
	.section .gcc_except_table,"a",@progbits
.Llsda:	.byte	0xff, 0xff, 0x01
	.uleb128 .Lsites_end - .Lsites
.Lsites:
	.uleb128 .Lcall - lands
	.uleb128 .Lback - .Lcall
	.uleb128 .Lpad - lands
	.uleb128 0
	.uleb128 .Lback - lands
	.uleb128 1f - .Lback
	.uleb128 0
	.uleb128 0
.Lsites_end:
	.text
1:
	.hidden	DW.ref.__gxx_personality_v0
	.weak	DW.ref.__gxx_personality_v0
	.section .data.rel.local.DW.ref.__gxx_personality_v0,"awG",@progbits,DW.ref.__gxx_personality_v0,comdat
	.balign 8
	.type	DW.ref.__gxx_personality_v0, @object
	.size	DW.ref.__gxx_personality_v0, 8
DW.ref.__gxx_personality_v0:
	.quad	__gxx_personality_v0
