/* Probes with arguments of every form, with flags that are used behind the site, before a call,
 * before a tail call, and in a leaf that keeps data in its red zone. Argument: passes. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/sdt.h>

__attribute__((noinline)) long work(long a, int b, short c) {
  DTRACE_PROBE3(app, work, a, b, c);
  return a * 3 + b - c;
}

/* A leaf: `kept` stands below the stack pointer. */
__attribute__((noinline)) long leaf(long a) {
  volatile long kept[4] = {a, a + 1, a + 2, a + 3};
  DTRACE_PROBE2(app, leaf, kept[0], kept[3]);
  return kept[0] + kept[1] + kept[2] + kept[3];
}

/* The site stands between a comparison and what reads its flags, carry and overflow among them. */
#define SITE_NOTE(name)                                                                          \
  ".pushsection .note.stapsdt,\"?\",\"note\"\n.balign 4\n.4byte 992f-991f,994f-993f,3\n"         \
  "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte 0\n" \
  ".asciz \"app\"\n.asciz \"" name "\"\n.asciz \"-8@%%rdi\"\n994: .balign 4\n.popsection\n"
__attribute__((noinline)) long flags(long a, long b) {
  long equal = 0, below = 0, less = 0;
  __asm__ volatile(
      "cmp %4,%3\n990: nop\n"
      "sete %b0\n setb %b1\n setl %b2\n" SITE_NOTE("flags")
      : "+&q"(equal), "+&q"(below), "+&q"(less)
      : "D"(a), "r"(b));
  return equal * 4 + below * 2 + less;
}

__attribute__((noinline)) double floats(double x, float y) {
#ifndef NO_FLOATS /* bcc's parser, which bpftrace uses, knows no "8f@" */
  DTRACE_PROBE2(app, floats, x, y);
#endif
  return x * 2 + y;
}

__attribute__((noinline)) long callee(long a) {
  __asm__ volatile("" : "+r"(a));
  return a ^ 5;
}

__attribute__((noinline)) long caller(long a, long b) {
  DTRACE_PROBE2(app, caller, a, b);
  return callee(a) + b;
}

__attribute__((noinline)) long tail(long a) {
  DTRACE_PROBE1(app, tail, a);
  return callee(a);
}

long table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__attribute__((noinline)) long memory(const long* base, long index, const char* text) {
  long local = index;
  __asm__ volatile("" : "+m"(local));
  DTRACE_PROBE5(app, memory, base[index], local, (unsigned char)index, text, 77);
  return local;
}

int main(int argc, char** argv) {
  const long passes = argc > 1 ? atol(argv[1]) : 10;
  long sum = 0;
  double real = 0;
  for (long i = 0; i < passes; ++i) {
    sum += work(-i, (int)i, (short)(i * 7));
    sum += leaf(i);
    sum += flags(i & 7, 3) + flags(-1, 1) * 8 + flags(i, -1) * 64;
    sum += caller(i, 2) + tail(i);
    sum += memory(table, i & 7, "text");
    real += floats((double)i / 3, (float)i);
  }
  printf("%ld %.6f\n", sum, real);
  return 0;
}
