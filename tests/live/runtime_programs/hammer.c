/* 64 sites that threads pass all the time, while others attach and detach. Every handler checks its
 * arguments, and that its attachment was not detached; one handler of each class stays attached to
 * all, and must see every hit. With a timer, a signal handler passes sites, too.
 * Arguments: threads that pass, threads that attach, times that each of these attaches, signals a
 * second. Prints "ok" and the numbers of hits, or what was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <reprobe/rt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sdt.h>
#include <sys/time.h>

#include "handlers.h"

#define SITE(n)                                            \
  __attribute__((noinline)) static long site_##n(long x) { \
    DTRACE_PROBE2(hammer, s##n, n, x);                     \
    return x + n;                                          \
  }
#define EIGHT(X, t) X(t##0) X(t##1) X(t##2) X(t##3) X(t##4) X(t##5) X(t##6) X(t##7)
#define ALL(X) \
  EIGHT(X, 1) EIGHT(X, 2) EIGHT(X, 3) EIGHT(X, 4) EIGHT(X, 5) EIGHT(X, 6) EIGHT(X, 7) EIGHT(X, 8)
ALL(SITE)
#define NAME(n) site_##n,
static long (*const sites[])(long) = {ALL(NAME)};
enum { SITES = sizeof sites / sizeof sites[0] };
#define NUMBER(n) n,
static const long numbers[] = {ALL(NUMBER)};

enum { MAGIC = 0x5eed };
struct context {
  atomic_int alive;
  atomic_ulong hits;
};
static atomic_ulong wrong_arguments, dead_calls, passed, by_signals, attached;
static atomic_int stop;
static __thread long last; /* what this thread passes */
static __thread volatile sig_atomic_t in_signal;

static void look(const struct reprobe_rt_hit* hit, struct context* context) {
  struct reprobe_rt_value site, x;
  if (context->alive != MAGIC) atomic_fetch_add(&dead_calls, 1);
  if (reprobe_rt_argument(hit, 0, &site) != 0 || reprobe_rt_argument(hit, 1, &x) != 0 ||
      (long)x.bits != last || hit->probe->name[0] != 's' ||
      (long)site.bits != (hit->probe->name[1] - '0') * 10 + hit->probe->name[2] - '0')
    atomic_fetch_add(&wrong_arguments, 1);
  atomic_fetch_add_explicit(&context->hits, 1, memory_order_relaxed);
}
static void full(const struct reprobe_rt_hit* hit, void* context) {
  __asm__ volatile("pcmpeqd %%xmm3,%%xmm3" ::: "xmm3");
  look(hit, context);
}

static unsigned long next(unsigned long* seed) {
  *seed = *seed * 6364136223846793005U + 1442695040888963407U;
  return *seed >> 33;
}

static void* passes(void* argument) {
  unsigned long seed = (unsigned long)argument, count = 0;
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
    const unsigned long r = next(&seed);
    const unsigned i = (unsigned)(r % SITES);
    double kept = (double)r;
    __asm__ volatile("" : "+x"(kept));
    last = (long)r;
    if (sites[i]((long)r) != (long)r + numbers[i]) abort();
    __asm__ volatile("" : "+x"(kept));
    if (kept != (double)r) abort();
    ++count;
  }
  atomic_fetch_add(&passed, count);
  return 0;
}

static void on_signal(int number) {
  (void)number;
  const int error = errno;
  const long before = last;
  last = 7;
  sites[0](7);
  atomic_fetch_add(&by_signals, 1);
  last = before;
  errno = error;
}

static long times;
static void* attaches(void* argument) {
  unsigned long seed = (unsigned long)argument;
  for (long i = 0; i < times; ++i) {
    const unsigned long r = next(&seed);
    char glob[32];
    if (r % 8 == 0) {
      snprintf(glob, sizeof glob, "hammer:s%lu?", 1 + r / 8 % 8);
    } else {
      snprintf(glob, sizeof glob, "hammer:s%ld", numbers[r / 8 % SITES]);
    }
    struct context* context = malloc(sizeof *context);
    context->alive = MAGIC;
    context->hits = 0;
    struct reprobe_rt_attachment* a = reprobe_rt_attach(glob, REPROBE_RT_FULL, full, context);
    if (a == 0) {
      printf("attach: %s\n", strerror(errno));
      exit(1);
    }
    if (reprobe_rt_attached(a) != (r % 8 == 0 ? 8 : 1)) {
      printf("%s: %zu sites\n", glob, reprobe_rt_attached(a));
      exit(1);
    }
    if (r % 64 == 0) sched_yield();
    if (reprobe_rt_detach(a) != 0) abort();
    context->alive = 0;
    attached += context->hits;
    free(context);
  }
  return 0;
}

int main(int argc, char** argv) {
  const int passing = argc > 1 ? atoi(argv[1]) : 8, attaching = argc > 2 ? atoi(argv[2]) : 2;
  times = argc > 3 ? atol(argv[3]) : 1000;
  const int signals = argc > 4 ? atoi(argv[4]) : 0;
  struct context always = {MAGIC, 0};
  struct reprobe_rt_attachment* stays =
      reprobe_rt_attach("hammer:*", REPROBE_RT_FULL, full, &always);
  if (stays == 0 || reprobe_rt_attached(stays) != SITES) return 2;
  if (signals > 0) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, 0);
    const struct itimerval every = {{0, 1000000 / signals}, {0, 1000000 / signals}};
    setitimer(ITIMER_REAL, &every, 0);
  }
  pthread_t threads[64];
  int count = 0;
  for (int i = 0; i < passing; ++i)
    pthread_create(&threads[count++], 0, passes, (void*)(1000UL + (unsigned long)i));
  for (int i = 0; i < attaching; ++i)
    pthread_create(&threads[count++], 0, attaches, (void*)(1UL + (unsigned long)i));
  for (int i = passing; i < count; ++i) pthread_join(threads[i], 0);
  stop = 1;
  for (int i = 0; i < passing; ++i) pthread_join(threads[i], 0);
  if (signals > 0) {
    const struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, 0);
  }
  reprobe_rt_detach(stays);
  const unsigned long hits = always.hits + reprobe_rt_nested(), all = passed + by_signals;
  const int good = hits == all && wrong_arguments == 0 && dead_calls == 0;
  printf("%s passed %lu signals %lu hits %lu nested %lu others %lu wrong %lu dead %lu\n",
         good ? "ok" : "FAILED", all, (unsigned long)by_signals, (unsigned long)always.hits,
         (unsigned long)reprobe_rt_nested(), (unsigned long)attached,
         (unsigned long)wrong_arguments, (unsigned long)dead_calls);
  return !good;
}
