/* Nanoseconds a pass of a loop with a probe site; SITE says what stands there:
 *   0 nothing, 1 a probe, 2 a probe behind a check of its semaphore, 3 the load and jump of the
 *   kernel markers of 2006 (a byte is loaded and tested, a jump goes around the call).
 * Every pass needs the result of the one before; with BARE there is nothing but the site and the
 * count. Arguments: passes, address of the site in hexadecimal. Prints the fastest of 5 runs of the
 * loop, of a chain of additions, one a cycle, which tells the clock rate, and of getppid(); then
 * the byte at the site, and whether the kernel has mapped its trampoline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if SITE == 2
#define _SDT_HAS_SEMAPHORES 1
#endif
#include <sys/sdt.h>
#if SITE == 2
__extension__ unsigned short speed_pass_semaphore __attribute__((section(".probes")));
#endif

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

volatile char marker_state;
__attribute__((noinline, used)) void marker_called(void) { abort(); }

#if SITE == 1
#define PASS DTRACE_PROBE(speed, pass)
#elif SITE == 2
#define PASS                                                                 \
  if (__builtin_expect(*(volatile unsigned short*)&speed_pass_semaphore, 0)) \
  DTRACE_PROBE(speed, pass)
#elif SITE == 3
#define PASS \
  if (__builtin_expect(marker_state, 0)) marker_called()
#else
#define PASS (void)0
#endif

__attribute__((noinline)) static unsigned long loop(long n) {
  unsigned long x = 1;
  for (long i = 0; i < n; ++i) {
#ifdef BARE
    PASS;
    __asm__ volatile("");
#else
    x = x * 5 + 3;
    PASS;
    __asm__ volatile("" : "+r"(x));
    x ^= x >> 7;
#endif
  }
  return x;
}

static unsigned long chain(long n) {
  unsigned long x = 1;
  for (long i = 0; i < n; i += 64) {
    __asm__ volatile(".rept 64\n add %0, %0\n .endr" : "+r"(x) : : "cc");
  }
  return x;
}

static unsigned long calls(long n) {
  for (long i = 0; i < n; ++i) syscall(SYS_getppid);
  return 0;
}

static void measure(unsigned long (*work)(long), long n) {
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    const double start = now();
    work(n);
    const double took = (now() - start) / (double)n;
    if (took < best) best = took;
  }
  printf("%.4f ", best);
}

int main(int argc, char** argv) {
  const long n = argc > 1 ? atol(argv[1]) : 20000000;
  const unsigned char* site = (const unsigned char*)(argc > 2 ? strtoul(argv[2], 0, 16) : 0);
  measure(loop, n);
  measure(chain, 20000000);
  measure(calls, 100000);
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[512];
  int trampoline = 0;
  while (maps && fgets(line, sizeof line, maps)) trampoline |= strstr(line, "uprobes-tr") != 0;
  printf("%02x %d\n", site ? *site : 0, trampoline);
  return 0;
}
