/* A library that is opened late. */
#include <sys/sdt.h>

int library_call(int a) {
  DTRACE_PROBE1(lib, call, a);
  return a + 1;
}
