/* Hand-written code that no symbol and no unwind table knows, with probes behind rows of nops. (The
 * sites' own symbols go with a strip.) */
#include "probe.h"

__asm__(
    ".text\n"
    ".byte 0x90, 0x90, 0x90\n"
    ".Lcode:\n"
    "nop\n"
    "nop\n" PROBE_TOPLEVEL(app, nameless, 0)
    "lea 1(%rdi), %rax\n"
    "jmp .Lbehind\n"
    ".balign 16\n"
    ".Lbehind:\n" PROBE_TOPLEVEL(app, nameless_behind, 0)
    "ret\n"
    ".balign 16\n"
    ".section .data.rel.ro, \"aw\", @progbits\n"
    ".balign 8\n"
    ".globl nameless_code\n"
    "nameless_code:\n"
    ".quad .Lcode\n"
    ".text\n");
