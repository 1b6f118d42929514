// Passes its probes argv[1] times with values that a tracer must see: i, -i, 7 and a long in memory.
// values:counted has a counter.
#define _SDT_HAS_SEMAPHORES 1
#include <stdlib.h>
#include <sys/sdt.h>

unsigned short values_plain_semaphore;  // the macro names it, the note does not
unsigned short values_counted_semaphore __attribute__((section(".probes")));
long kept[2];

__attribute__((noinline)) void counted(int i, long* at) {
  STAP_PROBE4(values, counted, i, -i, 7, at[1]);
}

#undef _SDT_HAS_SEMAPHORES
#undef _SDT_SEMAPHORE
#define _SDT_SEMAPHORE(provider, name) _SDT_ASM_1(_SDT_ASM_ADDR 0)

__attribute__((noinline)) void plain(int i, long* at) {
  STAP_PROBE4(values, plain, i, -i, 7, at[1]);
  __asm__ volatile("" ::: "memory");
}

int main(int argc, char** argv) {
  const int hits = argc > 1 ? atoi(argv[1]) : 1;
  for (int i = 1; i <= hits; ++i) {
    kept[1] = 100 + i;
    plain(i, kept);
    counted(i, kept);
  }
  return 0;
}
