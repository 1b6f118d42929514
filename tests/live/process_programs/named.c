// Passes its probes argv[1] times. named:twice has two sites, one in each function; named:one is the
// last of three sites in a function of which no other symbol tells where it is.
#include <stdlib.h>
#include <sys/sdt.h>

__attribute__((noinline)) int first(int i) {
  DTRACE_PROBE1(named, twice, i);
  return i * 3;
}

__attribute__((noinline)) int second(int i) {
  DTRACE_PROBE1(named, twice, i);
  i ^= 5;
  DTRACE_PROBE(named, under__score);
  i *= 7;
  DTRACE_PROBE2(named, one, i, 1);
  return i * 11;
}

int main(int argc, char** argv) {
  int sum = 0;
  for (int i = 0; i < (argc > 1 ? atoi(argv[1]) : 0); ++i) sum += first(i) + second(sum);
  return sum == 1;
}
