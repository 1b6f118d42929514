/* Nanoseconds a hit: what a loop with a probe site takes while something is attached, less what it
 * takes while nothing is. ARGUMENTS: how many the probe has. Prints, one a line, a name and the
 * fastest of many rounds: a call through a pointer to an empty function, an empty handler of each
 * class, a handler that reads every argument, one that counts; and attaching and detaching once. */
#include <reprobe/rt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sdt.h>
#include <time.h>

#ifndef ARGUMENTS
#define ARGUMENTS 2
#endif

void empty(const struct reprobe_rt_hit* hit, void* context);
void read_all(const struct reprobe_rt_hit* hit, void* context);
void count_one(const struct reprobe_rt_hit* hit, void* context);

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

__attribute__((noinline)) static void loop(long n) {
  for (long i = 0; i < n; ++i) {
#if ARGUMENTS == 0
    DTRACE_PROBE(speed, pass);
#elif ARGUMENTS == 2
    DTRACE_PROBE2(speed, pass, i, n);
#elif ARGUMENTS == 6
    DTRACE_PROBE6(speed, pass, i, n, 3, 4, i, n);
#else
    DTRACE_PROBE12(speed, pass, i, n, 3, 4, i, n, 7, 8, i, n, 11, 12);
#endif
    __asm__ volatile("" ::: "memory");
  }
}

static void (*volatile called)(const struct reprobe_rt_hit*, void*) = empty;
__attribute__((noinline)) static void calls(long n) {
  void (*const function)(const struct reprobe_rt_hit*, void*) = called;
  for (long i = 0; i < n; ++i) {
    function(0, 0);
    __asm__ volatile("" ::: "memory");
  }
}

static double fastest(void (*work)(long), long n) {
  double best = 1e30;
  for (int i = 0; i < 15; ++i) {
    const double start = now();
    work(n);
    const double took = (now() - start) / (double)n;
    if (took < best) best = took;
  }
  return best;
}

static void hit(const char* name, enum reprobe_rt_class handlers, reprobe_rt_handler handler,
                double untraced, long n) {
  unsigned long context = 0;
  struct reprobe_rt_attachment* a = reprobe_rt_attach("speed:pass", handlers, handler, &context);
  if (a == 0 || reprobe_rt_attached(a) != 1) exit(1);
  printf("%s %.3f\n", name, fastest(loop, n) - untraced);
  reprobe_rt_detach(a);
}

int main(void) {
  const long n = 300000;
  const double untraced = fastest(loop, n);
  printf("untraced %.3f\n", untraced);
  printf("call %.3f\n", fastest(calls, n) - untraced);
  hit("general", REPROBE_RT_GENERAL, empty, untraced, n);
  hit("full", REPROBE_RT_FULL, empty, untraced, n / 10);
  hit("arguments", REPROBE_RT_GENERAL, read_all, untraced, n);
  hit("count", REPROBE_RT_GENERAL, count_one, untraced, n);
  double best = 1e30;
  for (int i = 0; i < 200; ++i) {
    const double start = now();
    reprobe_rt_detach(reprobe_rt_attach("speed:pass", REPROBE_RT_GENERAL, empty, 0));
    if (now() - start < best) best = now() - start;
  }
  printf("attach-detach %.0f\n", best);
  return 0;
}
