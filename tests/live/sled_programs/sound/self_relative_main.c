#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
extern const int32_t fault_table[2];
long load_or(long *);
static void h(int s, siginfo_t *i, void *c) {
  (void)s; (void)i;
  greg_t *r = ((ucontext_t *)c)->uc_mcontext.gregs;
  if ((uintptr_t)r[REG_RIP] != (uintptr_t)&fault_table[0] + fault_table[0]) _Exit(9);
  r[REG_RIP] = (greg_t)((uintptr_t)&fault_table[1] + fault_table[1]);
}
int main(void) {
  struct sigaction a = {.sa_sigaction = h, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &a, 0);
  long v = 8;
  printf("%ld %ld\n", load_or(&v), load_or((long *)8));
  return 0;
}
