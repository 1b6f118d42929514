/* A small program with much that a rewrite has to keep: probes in loops and behind checks, some whose
 * code a linker drops, exceptions that unwind through probed functions, constructors, pointers that
 * are relocated, and thread-local data. What it prints depends on all of them. */
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

#include <cstdio>

#define COUNTER(name) \
  extern "C" { \
  __extension__ unsigned short subject_##name##_semaphore __attribute__((section(".probes"))); \
  }
COUNTER(loop)
COUNTER(branch)
COUNTER(caught)
COUNTER(last)
COUNTER(dead)
COUNTER(body)
COUNTER(enter)
COUNTER(dropped)

#define KEPT __attribute__((noinline, used))

static const char* const kWords[] = {"one", "two", "three"};
thread_local int depth = 3;
static int constructed;

struct Constructed {
  Constructed() { constructed += 7; }
};
static Constructed object;

KEPT long mix(long a, long b) { return (a * 31 + b) ^ (a >> 3); }

KEPT long loop(long n) {
  long sum = 0;
  for (long i = 0; i < n; ++i) {
    if (__builtin_expect(subject_loop_semaphore, 0)) STAP_PROBE2(subject, loop, i, sum);
    sum = mix(sum, i);
    STAP_PROBE1(subject, body, sum);
    if (sum > 1000000) sum %= 1009;
  }
  return sum;
}

struct Leave {
  long* left;
  ~Leave() { ++*left; }
};

KEPT long thrower(long n, long* left) {
  Leave leave{left};
  STAP_PROBE1(subject, enter, n);
  if (n % 3 == 0) throw n;
  if (subject_branch_semaphore) {
    ++*left;
    STAP_PROBE2(subject, branch, n, left);
  }
  return mix(n, *left);
}

KEPT long catcher(long n) {
  long left = 0, sum = 0;
  for (long i = 0; i < n; ++i) {
    try {
      sum = mix(sum, thrower(i, &left));
    } catch (long value) {
      if (__builtin_expect(subject_caught_semaphore, 0)) STAP_PROBE1(subject, caught, value);
      sum += value;
    }
  }
  return sum + left;
}


extern "C" long dropped(long n) {
  if (__builtin_expect(subject_dead_semaphore, 0)) STAP_PROBE1(subject, dead, n);
  STAP_PROBE2(subject, dropped, n, n + 1);
  return mix(n, n);
}

int main(int argc, char**) {
  std::printf("%ld %ld %s %d %d\n", loop(20 + argc), catcher(10), kWords[argc % 3], depth,
              constructed);
  if (__builtin_expect(subject_last_semaphore, 0)) STAP_PROBE(subject, last);
  return 0;
}
