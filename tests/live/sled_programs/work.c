/* Probe sites of every shape that a sled has to serve. It computes with what it passes, prints the
 * result, and is deterministic; no argument is an address. SEMAPHORES: each probe has one. */
#include <stdio.h>
#include <stdlib.h>
#ifdef SEMAPHORES
#define _SDT_HAS_SEMAPHORES 1
#define SEMAPHORE(name) \
  __extension__ unsigned short work_##name##_semaphore __attribute__((unused, section(".probes")))
SEMAPHORE(loop);
SEMAPHORE(leaf);
SEMAPHORE(state);
SEMAPHORE(label);
SEMAPHORE(spill);
SEMAPHORE(spilled);
SEMAPHORE(tail);
SEMAPHORE(before);
SEMAPHORE(after);
SEMAPHORE(pair);
SEMAPHORE(twin);
SEMAPHORE(last);
SEMAPHORE(branch);
SEMAPHORE(wide);
#define IF(name) if (__builtin_expect(work_##name##_semaphore, 0))
#else
#define IF(name)
#endif
#include <sys/sdt.h>

#define KEPT __attribute__((noinline, noclone, used))

static volatile long sink;

KEPT long mix(long a, long b) { return (a * 31 + b) ^ (a >> 3); }

/* A loop whose head and body are probed. */
KEPT long loop(long n) {
  long sum = 0;
  for (long i = 0; i < n; ++i) {
    IF(loop) DTRACE_PROBE2(work, loop, i % 7, sum & 15);
    sum = sum * 5 + i;
  }
  return sum;
}

/* A leaf that keeps values in the red zone. */
KEPT long leaf(long a, long b) {
  volatile long kept[6] = {a, b, a ^ b, a + b, a - b, a * b};
  IF(leaf) DTRACE_PROBE3(work, leaf, kept[1] & 3, kept[2] & 3, 'x');
  return kept[0] + kept[1] * 3 + kept[2] * 5 + kept[3] * 7 + kept[4] * 11 + kept[5] * 13;
}

/* A jump table, with a probe in most of its arms. */
KEPT long state(long s, long x) {
  switch (s) {
    case 0: IF(state) DTRACE_PROBE1(work, state, 0); return mix(x, 1);
    case 1: IF(state) DTRACE_PROBE1(work, state, 1); x += 3; break;
    case 2: x ^= 0x55; break;
    case 3: IF(state) DTRACE_PROBE1(work, state, 3); /* fall through */
    case 4: IF(state) DTRACE_PROBE1(work, state, 4); x = mix(x, x); break;
    case 5: IF(state) DTRACE_PROBE2(work, state, 5, x & 1); return -x;
    case 6: sink = x; IF(state) DTRACE_PROBE1(work, state, 6); break;
    case 7: x *= 9; break;
    default: IF(state) DTRACE_PROBE1(work, state, -1); return 0;
  }
  return x + s;
}

/* A computed goto. */
KEPT long label(const unsigned char* code, long x) {
  static const void* const to[] = {&&add, &&twice, &&flip, &&done};
#define NEXT goto* to[*code++ & 3]
  NEXT;
add:
  x += 7;
  IF(label) DTRACE_PROBE1(work, label, x & 7);
  NEXT;
twice:
  IF(label) DTRACE_PROBE2(work, label, x & 7, 2);
  x *= 2;
  NEXT;
flip:
  x = ~x;
  NEXT;
done:
  IF(label) DTRACE_PROBE1(work, label, -1);
  return x;
}

/* Arguments on the stack: too many are alive for the registers. */
KEPT long spill(long a, long b, long c, long d, long e, long f, int g, short h) {
  long t1 = mix(a, b), t2 = mix(c, d), t3 = mix(e, f), t4 = mix(g, h), t5 = mix(t1, t2),
       t6 = mix(t3, t4), t7 = mix(t5, t1), t8 = mix(t6, t2), t9 = mix(t7, t3);
  IF(spill) DTRACE_PROBE6(work, spill, t1, t2, t3, t4, t5, t6);
  IF(spilled) DTRACE_PROBE6(work, spilled, t7, t8, t9, a, g, h);
  long u = mix(t1, t9);
  return t1 ^ t2 ^ t3 ^ t4 ^ t5 ^ t6 ^ t7 ^ t8 ^ t9 ^ u ^ a ^ g ^ h;
}

KEPT long tail(long a, long b) {
  a += b;
  IF(tail) DTRACE_PROBE2(work, tail, a & 31, b & 31);
  return mix(a, b);
}

/* Directly before a call, and directly behind one. */
KEPT long around(long a) {
  long b = mix(a, 1);
  IF(before) DTRACE_PROBE1(work, before, b & 255);
  long c = mix(b, a);
  IF(after) DTRACE_PROBE2(work, after, c & 255, b & 3);
  return c + b;
}

/* One behind the other, and two probes at one place. */
KEPT long pair(long a) {
  IF(pair) DTRACE_PROBE1(work, pair, a & 63);
  IF(twin) DTRACE_PROBE2(work, twin, a & 1, 'T');
  return a * a;
}

/* The last instructions of a function. */
KEPT void last(long a) {
  sink = a;
  IF(last) DTRACE_PROBE1(work, last, a & 7);
}

/* Both arms of short branches. */
KEPT long branch(long a, long b) {
  if (a < b) {
    IF(branch) DTRACE_PROBE1(work, branch, 1);
    a += b;
  } else if (a == b) {
    IF(branch) DTRACE_PROBE1(work, branch, 2);
  } else {
    a -= sink;
    IF(branch) DTRACE_PROBE1(work, branch, 3);
  }
  while (a > 100) {
    a >>= 1;
    IF(branch) DTRACE_PROBE1(work, branch, 4);
  }
  return a;
}

/* Other sizes, constants, memory. */
KEPT unsigned long wide(unsigned char c, signed char s, unsigned short u, int i, unsigned long l) {
  IF(wide) DTRACE_PROBE6(work, wide, c, s, u, i, l, -77);
  return c + s + u + i + l;
}

int main(int argc, char** argv) {
  long rounds = argc > 1 ? atol(argv[1]) : 50, total = 0;
  static const unsigned char code[] = {0, 1, 2, 0, 1, 1, 2, 3};
  for (long i = 0; i < rounds; ++i) {
    total = mix(total, loop(i % 9));
    total = mix(total, leaf(i, total));
    total = mix(total, state(i % 9, total));
    total = mix(total, label(code + i % 8, total));
    total = mix(total, spill(i, 2, 3, i * 4, 5, 6, (int)i, (short)-i));
    total = mix(total, tail(i, total & 7));
    total = mix(total, around(i));
    total = mix(total, pair(i));
    last(i);
    total = mix(total, branch(i % 5, i % 3) + branch(total & 0xffff, 1));
    total = mix(total, (long)wide((unsigned char)i, (signed char)-i, (unsigned short)i, -5, i + 1ul));
  }
  printf("total %lx sink %ld\n", total, sink);
  return 0;
}
