/* Live probes beside nops that are no probes': in front, behind, in rows, as padding, and probes
 * whose own nop is not the usual one. Each function is called once a round. */
#include "probe.h"

#ifdef __clang__
#define KEPT __attribute__((noinline, used))
#else
#define KEPT __attribute__((noinline, noclone, used))
#endif
#define NOPS(count) __asm__ __volatile__(".skip " #count ", 0x90")

#define SHAPE(name, before, behind) \
  KEPT long name(long n) {          \
    before;                         \
    PROBE1(app, name, n);           \
    behind;                         \
    return n * 3 + 7;               \
  }

SHAPE(entry, , )
SHAPE(row_before, NOPS(3), )
SHAPE(row_behind, , NOPS(3))
SHAPE(rows, NOPS(40), NOPS(40))
__attribute__((patchable_function_entry(5))) SHAPE(patchable, , )
__attribute__((patchable_function_entry(9, 4))) SHAPE(patchable_both, , )
#ifndef __clang__
/* Room for a hot patch, as Wine has it. */
__attribute__((ms_hook_prologue)) SHAPE(hooked, , )
#endif

/* The nop behind a jump: out of line, where compilers pad too. */
KEPT long out_of_line(long n) {
  if (__builtin_expect(n == 3, 0)) {
    PROBE1(app, out_of_line, n);
    return n ^ 0x55;
  }
  return n + 1;
}

KEPT long in_loop(long n) {
  long sum = 0;
  for (long i = 0; i < 2; ++i) {
    PROBE1(app, in_loop, i);
    sum += n ^ i;
  }
  return sum;
}

/* What a header may be told to emit (USDT_NOP of libbpf/usdt). */
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x66, 0x90"
SHAPE(nop2, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x0f, 0x1f, 0x00"
SHAPE(nop3, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x0f, 0x1f, 0x40, 0x00"
SHAPE(nop4, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"
SHAPE(nop5, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00"
SHAPE(nop6, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00"
SHAPE(nop7, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00"
SHAPE(nop8, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00"
SHAPE(nop9, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x90, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00"
SHAPE(nop10, , )
#undef PROBE_NOP
#define PROBE_NOP ".byte 0x66, 0x66, 0x90"
SHAPE(prefixed, , )
/* No nop at all, as hand-written notes have it. */
#undef PROBE_NOP
#define PROBE_NOP "lea 0x11(%%rax), %%rcx"
KEPT long bare(long n) {
  __asm__ __volatile__(PROBE_ASM_NOTE(app, bare, PROBE_SYMBOL(app, bare), "-8@%[n]")
                       ::[n] "D"(n) : "rcx");
  return n * 3 + 8;
}

unsigned fixture_main(void); /* mass.py */
int printf(const char *format, ...);

typedef long Function(long);
static Function *const all[] = {
    entry, row_before, row_behind, rows, patchable, patchable_both, out_of_line, in_loop,
    nop2, nop3, nop4, nop5, nop6, nop7, nop8, nop9, nop10, prefixed, bare,
#ifndef __clang__
    hooked,
#endif
};

extern Function *const nameless_code; /* nameless.c */

int main(void) {
  long sum = fixture_main();
  for (unsigned i = 0; i < sizeof all / sizeof all[0]; ++i) sum = sum * 31 + all[i](i % 2);
  sum += out_of_line(3) + nameless_code(5);
  printf("%lx\n", sum & 0xffffff);
  return 0;
}
