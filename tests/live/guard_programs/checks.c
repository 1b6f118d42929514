/* Is-enabled checks in the forms that compilers give them. */
#define _SDT_HAS_SEMAPHORES 1
#define SDT_USE_VARIADIC 1
#include <sys/sdt.h>

#include "checks.h"

/* Start-up code without unwind information, whose bytes might be short jumps, is far away. */
__asm__(".text\n.skip 256, 0xcc\n");

#define COUNTER(name) \
  __extension__ unsigned short checks_##name##_semaphore __attribute__((section(".probes")))
COUNTER(branch);
COUNTER(value);
COUNTER(left);
COUNTER(right);
COUNTER(kept);
COUNTER(call);

long behind_guard[KINDS];

__attribute__((noinline)) long costly(long n) {
  __asm__ volatile("" : "+r"(n));
  return n + 1;
}

/* A tail call behind the check: the flags are dead there. */
__attribute__((noinline)) static long in_call(long n) {
  if (checks_call_semaphore) {
    ++behind_guard[5];
    STAP_PROBE1(checks, call, costly(n));
  }
  return costly(n);
}

/* The address of a counter may be kept in a register over the whole loop. */
__attribute__((noinline)) static long in_loop(int loops) {
  long sum = 0;
  for (int i = 0; i < loops; ++i) {
    if (checks_kept_semaphore) {
      ++behind_guard[4];
      STAP_PROBE1(checks, kept, costly(i));
    }
    sum += costly(i);
    if (checks_kept_semaphore) ++behind_guard[4];
  }
  return sum;
}

/* As CPython's cframe.use_tracing: the counter is folded into a mask. */
__attribute__((noinline)) static unsigned mask(int traced) {
  return (traced || checks_value_semaphore) ? 255U : 0U;
}

long pass(int loops) {
  long sum = in_loop(loops);
  for (int i = 0; i < loops; ++i) {
    if (checks_branch_semaphore) {
      ++behind_guard[0];
      STAP_PROBE1(checks, branch, costly(i));
    }
    const unsigned tracing = mask(0);
    if (tracing & 128U) {
      ++behind_guard[1];
      STAP_PROBE1(checks, value, tracing);
    }
    if (checks_left_semaphore | checks_right_semaphore) {
      ++behind_guard[2];
      if (checks_left_semaphore) STAP_PROBE1(checks, left, i);
      if (checks_right_semaphore) STAP_PROBE1(checks, right, i);
    }
    behind_guard[3] += checks_left_semaphore != 0 && checks_right_semaphore == 0;
    sum += in_call(i);
  }
  return sum;
}
