#include <sys/sdt.h>

void greet(const char *name);

void unused(int number) { DTRACE_PROBE1(hello, dead, number); }

int main(int argc, char **argv) {
  DTRACE_PROBE1(hello, live, argc);
  greet(argv[0]);
  return 0;
}
