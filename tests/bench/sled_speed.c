/* Nanoseconds a pass of a dependent loop with a probe site. SEMAPHORE: behind a check of one;
 * NONE: no site. Prints the time of the fastest of 5 runs. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifdef SEMAPHORE
#define _SDT_HAS_SEMAPHORES 1
#endif
#include <sys/sdt.h>
#ifdef SEMAPHORE
__extension__ unsigned short speed_pass_semaphore __attribute__((section(".probes")));
#endif

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

__attribute__((noinline)) static unsigned long loop(long n) {
  unsigned long x = 1;
  for (long i = 0; i < n; ++i) {
    x = x * 5 + 3;
#ifdef SEMAPHORE
    if (__builtin_expect(*(volatile unsigned short*)&speed_pass_semaphore, 0))
#endif
#ifndef NONE
      DTRACE_PROBE1(speed, pass, x);
#endif
    __asm__ volatile("" : "+r"(x));
    x ^= x >> 7;
  }
  return x;
}

int main(int argc, char** argv) {
  const long n = argc > 1 ? atol(argv[1]) : 20000000;
  double best = 1e30;
  unsigned long x = 0;
  for (int i = 0; i < 5; ++i) {
    const double start = now();
    x += loop(n);
    const double took = (now() - start) / (double)n;
    if (took < best) best = took;
  }
  printf("%.3f %lu\n", best, x & 1);
  return 0;
}
