/* Cycles of a pass of a loop whose site tests a word of data in a stub, by how it does that; FORM:
 *   0 a nop at the site, 1 a stub with nothing but the kernel's nops, 2 cmpl $0 with memory,
 *   3 the same with the flags kept (jrcxz), 4 a jump through the slot.
 * With BARE the loop is the site and the count; else each pass needs the result of the one before,
 * as in sled_speed.c. Prints the least of many rounds; a chain of additions tells the clock.
 *
 *   for form in 0 1 2 3 4; do for bare in "" -DBARE; do
 *     gcc -O2 -no-pie -DFORM=$form $bare slot_forms.c -o forms && ./forms; done; done */
#include <stdio.h>
#include <time.h>

#define STUB(test)                                                                   \
  __asm__ volatile(                                                                  \
      "jmp 7f\n 8:\n .pushsection .text.stubs,\"ax\",@progbits\n .p2align 4\n 7:\n"   \
      ".byte 0x90,0x66,0x2e,0x0f,0x1f,0x84,0,0,0,0,0\n" test "\n .popsection" ::: "cc")
#define CALL                                                  \
  "lea -128(%%rsp),%%rsp\n push slot+16(%%rip)\n"             \
  "call *slot+8(%%rip)\n lea 136(%%rsp),%%rsp\n"

__attribute__((aligned(4096), used)) long slot[3];
void* way_on;

#if FORM == 0
#define SITE __asm__ volatile("nop" ::: "cc")
#elif FORM == 1
#define SITE STUB("jmp 8b")
#elif FORM == 2
#define SITE STUB("cmpl $0,slot(%%rip)\n jne 9f\n jmp 8b\n 9:" CALL "jmp 8b")
#elif FORM == 3
#define SITE                                                                             \
  STUB("lea -128(%%rsp),%%rsp\n push %%rcx\n mov slot(%%rip),%%ecx\n jrcxz 1f\n"          \
       "pop %%rcx\n push slot+16(%%rip)\n call *slot+8(%%rip)\n lea 136(%%rsp),%%rsp\n"   \
       "jmp 2f\n 1: pop %%rcx\n lea 128(%%rsp),%%rsp\n 2: jmp 8b")
#else
#define SITE \
  STUB("jmp *way_on(%%rip)\n .popsection\n .pushsection .data\n .globl back\n back: .quad 8b")
extern void* back;
#endif

__attribute__((noinline)) static unsigned long loop(long n) {
  unsigned long x = 1;
  for (long i = 0; i < n; ++i) {
#ifdef BARE
    SITE;
    __asm__ volatile("");
#else
    x = x * 5 + 3;
    SITE;
    __asm__ volatile("" : "+r"(x));
    x ^= x >> 7;
#endif
  }
  return x;
}

static unsigned long chain(long n) {
  unsigned long x = 1;
  for (long i = 0; i < n; i += 64) __asm__ volatile(".rept 64\n add %0,%0\n .endr" : "+r"(x)::"cc");
  return x;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double least(unsigned long (*work)(long), long n) {
  double best = 1e30;
  for (int i = 0; i < 40; ++i) {
    const double start = now();
    work(n);
    const double took = (now() - start) / (double)n;
    if (took < best) best = took;
  }
  return best;
}

int main(void) {
#if FORM == 4
  way_on = back;
#endif
  printf("%.2f\n", least(loop, 1000000) / least(chain, 1000000));
  return 0;
}
