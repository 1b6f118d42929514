/* What becomes of a counter's address, one kind for each KIND. The library's counters are hidden, or
   as EXPORT says. */
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

#ifndef EXPORT
#define EXPORT __attribute__((visibility("hidden")))
#endif
EXPORT unsigned short rules_one_semaphore __attribute__((section(".probes")));
volatile int first, second;
volatile const void *kept;

__attribute__((noinline)) static int reads(const unsigned short *p) { return *p; }
void passed(const unsigned short *p);

#define CHECK(counted, n)                       \
  if (__builtin_expect(rules_one_semaphore, 0)) { \
    counted++;                                  \
    STAP_PROBE1(rules, one, n);                 \
  }

#if KIND == IPA_RA
/* gcc keeps the address in a call-clobbered register over the call: -fipa-ra. */
static __attribute__((noinline)) void quiet(void) {
  kept = 0;
  __asm__ volatile("" ::: "memory");
}
int f(int x) {
  CHECK(first, x)
  quiet();
  CHECK(second, x + 1)
  return x;
}
#elif KIND == PASSED
int f(int x) {
  CHECK(first, x)
  passed(&rules_one_semaphore);
  return x;
}
void passed(const unsigned short *p) { second += *p; }
#elif KIND == PASSED_LOCAL
int f(int x) {
  CHECK(first, x)
  return x + reads(&rules_one_semaphore);
}
#elif KIND == PROBED
/* Behind the callee the address is still in %rdi, at the probe too. */
int f(int x) {
  x += reads(&rules_one_semaphore);
  STAP_PROBE1(rules, one, x);
  return x;
}
__attribute__((noinline)) int g(int x) {
  CHECK(first, x)
  return x;
}
#elif KIND == PROBED_FIRST
/* The register of the probe's operand is the one that is passed. */
int f(int x) {
  STAP_PROBE1(rules, one, x);
  return x + reads(&rules_one_semaphore);
}
__attribute__((noinline)) int g(int x) {
  CHECK(first, x)
  return x;
}
#elif KIND == STORED
int f(int x) {
  kept = &rules_one_semaphore;
  CHECK(first, x)
  return x + (kept == (void *)&first);
}
#elif KIND == RETURNED
const unsigned short *g(int x) {
  CHECK(first, x)
  return &rules_one_semaphore;
}
int f(int x) { return x + (g(x) == (void *)&first); }
#elif KIND == CHOSEN
/* The register holds the counter's address or another one. */
unsigned short other = 0;
int f(int x) {
  const unsigned short *p = x & 1 ? &rules_one_semaphore : &other;
  CHECK(first, x)
  __asm__ volatile("" : "+r"(p));
  return x + *p;
}
#elif KIND == COMPUTED
int f(int x) {
  CHECK(first, x)
  return x + ((unsigned long)&rules_one_semaphore == 1234);
}
#elif KIND == IN_ARRAY
int f(int x) {
  const unsigned short *a[2] = {&rules_one_semaphore, &rules_one_semaphore};
  __asm__ volatile("" : : "r"(a) : "memory");
  CHECK(first, x)
  return x + *a[x & 1];
}
#elif KIND == VALUES
__attribute__((noinline)) int f(int x) {
  int r = 0;
  if (rules_one_semaphore == 1) r += 1;
  __asm__ volatile("" ::: "memory");
  if (rules_one_semaphore & 1) r += 2;
  __asm__ volatile("" ::: "memory");
  r += rules_one_semaphore * 4;
  __asm__ volatile("" ::: "memory");
  switch (rules_one_semaphore) {
    case 0: break;
    case 1: r += 8; break;
    default: r += 10000;
  }
  __asm__ volatile("" ::: "memory");
  r += (unsigned char)rules_one_semaphore * 16;
  __asm__ volatile("" ::: "memory");
  /* The flags of the addition are read behind the load. */
  unsigned value;
  __asm__ volatile("addl $1, %1; movzwl %2, %0; adcl $0, %0"
                   : "=&r"(value), "+r"(x) : "m"(rules_one_semaphore) : "cc");
  r += (int)value * 32;
  first = r;
  STAP_PROBE1(rules, one, x);
  return x;
}
#elif KIND == SITES
__attribute__((noinline)) int f(int x) {
  CHECK(first, x)
  return x;
}
__attribute__((noinline)) int g(int x) {
  CHECK(second, x)
  return x;
}
#endif
