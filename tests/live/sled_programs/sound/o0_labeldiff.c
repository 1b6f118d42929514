// build: gcc -O0 -fPIE -pie
// build: gcc -O2 -fPIE -pie
// build: clang-14 -O0 -fPIE -pie
// build: clang-14 -O2 -fPIE -pie -mretpoline
// build: clang-19 -O0 -fPIE -pie -mretpoline
// what: GCC manual's label-difference table; base and sum are kept in memory (-O0)
#include <stdio.h>
#include <sys/sdt.h>
__attribute__((noinline)) long interp(const unsigned char *pc, long x) {
  static const int offs[] = {&&op0 - &&op0, &&op1 - &&op0, &&op2 - &&op0, &&op3 - &&op0, &&end - &&op0};
  void *base = &&op0;
  void *t;
#define NEXT t = (char *)base + offs[*pc++]; goto *t
  NEXT;
op0: x += 3; DTRACE_PROBE(c, p0);
op1: x ^= 0x55; DTRACE_PROBE(c, p1);
op2: x += x >> 3; DTRACE_PROBE(c, p2);
op3: x *= 7; NEXT;
end: return x;
}
int main(void) {
  static const unsigned char prog[] = {0, 1, 2, 3, 1, 2, 0, 3, 2, 1, 0, 4};
  long s = 1;
  for (int i = 0; i < 50; i++) s = interp(prog, s + i);
  printf("%lx\n", s);
  return 0;
}
