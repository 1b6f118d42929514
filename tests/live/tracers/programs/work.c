/* The fixtures' program: live() has a probe, dead() has one of the same name and one of another and
 * is not called, guard.c has one behind a semaphore. It prints how often each site was passed.
 *   SHARED          a shared object, which host.c loads, with run() instead of main()
 *   FOREIGN_NOTE    a note of another owner in .note.stapsdt
 *   NO_DEAD         without dead() */
#include <stdio.h>
#include <stdlib.h>

#include "sdt_site.h"

#ifdef FOREIGN_NOTE
__asm__(
    ".pushsection .note.stapsdt,\"\",\"note\"\n"
    ".balign 4\n"
    ".4byte 4, 4, 3\n"
    ".asciz \"abc\"\n"
    ".4byte 0\n"
    ".popsection\n");
#endif

void guard(int i);
extern long guarded;

static volatile long sum;
static long worked;

__attribute__((noinline)) void live(int i) {
  STAP_PROBE1(traced, work, i);
  sum += i;
  ++worked;
}

#ifndef NO_DEAD
void dead(int i) {
  STAP_PROBE1(traced, work, i);
  sum += i;
  STAP_PROBE1(traced, gone, i);
}
#endif

__attribute__((visibility("default"))) void run(int hits) {
  for (int i = 0; i < hits; ++i) {
    live(i);
    guard(i);
  }
  printf("work %ld guarded %ld\n", worked, guarded);
}

#ifndef SHARED
int main(int argc, char** argv) {
  run(argc > 1 ? atoi(argv[1]) : 1);
  return 0;
}
#endif
