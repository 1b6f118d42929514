/* Functions that nobody calls, which the linker drops, between those that it keeps: the notes of the
 * former dangle. */
#include <stdio.h>
#include <sys/sdt.h>

#define KEPT __attribute__((noinline, noclone))

#define DEAD(n)                                  \
  long dead##n(long a) {                         \
    DTRACE_PROBE1(app, dead##n, a);              \
    return a * n;                                \
  }
#define LIVE(n)                                  \
  static KEPT long live##n(long a) {             \
    DTRACE_PROBE1(app, live##n, a);              \
    a = a * 7 + n;                               \
    DTRACE_PROBE1(app, again##n, a);             \
    return a ^ (a >> 5);                         \
  }

DEAD(1) DEAD(2) DEAD(3)
LIVE(1)
DEAD(4)
LIVE(2)
DEAD(5) DEAD(6) DEAD(7) DEAD(8) DEAD(9)
LIVE(3)
DEAD(10)

int main(void) {
  long sum = 0;
  for (long i = 0; i < 50; ++i) sum += live1(i) ^ live2(i) ^ live3(i);
  printf("%ld\n", sum);
  return 0;
}
