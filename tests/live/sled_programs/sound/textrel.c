// build: gcc -O2 -shared -fno-pic -mcmodel=large -Wl,-z,notext -DLIB
// build: gcc -O2 -pie -fno-pic -mcmodel=large -Wl,-z,notext
// what: text relocations: the loader writes into instructions (movabs $symbol); they may stand in a window
#include <stdio.h>
#include <sys/sdt.h>
long table[64];
long hits;
__attribute__((noinline)) long f(long k) {
  DTRACE_PROBE1(c, f0, k);
  table[k & 63] += k;
  DTRACE_PROBE1(c, f1, k);
  hits++;
  long r = table[(k * 7) & 63] + hits;
  DTRACE_PROBE1(c, f2, r);
  return r;
}
int work(void) {
  long s = 1;
  for (int i = 0; i < 500; i++) s = s * 3 + f(s & 127);
  printf("%lx %ld\n", s, hits);
  return 0;
}
#ifndef LIB
int main(void) { return work(); }
#endif
