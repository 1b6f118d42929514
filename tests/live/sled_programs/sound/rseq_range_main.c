#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <ucontext.h>
extern struct { uint32_t version, flags; uint64_t start, length, abort; } cs;
long f(long);
static int inside;
static volatile int on;
static void h(int s, siginfo_t *i, void *c) {
  (void)s; (void)i;
  uintptr_t pc = (uintptr_t)((ucontext_t *)c)->uc_mcontext.gregs[REG_RIP];
  if (on && pc - cs.start < cs.length) inside++;
}
int main(void) {
  struct sigaction a = {.sa_sigaction = h, .sa_flags = SA_SIGINFO};
  sigaction(SIGTRAP, &a, 0);
  on = 1;
  __asm__ volatile("pushfq\norq $0x100,(%rsp)\npopfq");
  long r = f(5);
  __asm__ volatile("pushfq\nandq $~0x100,(%rsp)\npopfq");
  printf("%ld, stopped inside %d times\n", r, inside);
  return 0;
}
