/* The last function of .text: two bytes, and nothing behind them. */
#include <sys/sdt.h>

	.section .note.GNU-stack,"",@progbits
	.text
	.balign 16
	.skip	256, 0xcc
	.globl end_of_text
	.type end_of_text, @function
end_of_text:
	.cfi_startproc
	DTRACE_PROBE(window, end_of_text)
	ret
	.cfi_endproc
	.size end_of_text, . - end_of_text
