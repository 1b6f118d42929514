// A program with a live probe that is hit argv[1] times (printed), a dead probe of the same
// name for --gc-sections to drop, and a function without a probe that runs as often.
// DEAD_OFFSET: where in its section the dead probe stands; after the link that is
// its address; not given: 0.
#include <stdio.h>
#include <stdlib.h>
#include <sys/sdt.h>

#define TEXT(x) #x
#define NOPS(count) ".skip " TEXT(count) ", 0x90"

static volatile long sum;

__attribute__((noinline)) void bystander(int i) { sum += i; }

__attribute__((noinline)) void work(int i) {
  DTRACE_PROBE1(demo, work, i);
  sum += i;
}

void dead(int i) {
#ifdef DEAD_OFFSET
  __asm__ volatile(NOPS(DEAD_OFFSET));
#endif
  DTRACE_PROBE1(demo, work, i);
}

int main(int argc, char** argv) {
  int hits = argc > 1 ? atoi(argv[1]) : 1;
  for (int i = 0; i < hits; ++i) {
    bystander(i);
    work(i);
  }
  printf("program %d\n", hits);
  return 0;
}
