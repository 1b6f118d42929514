#include <stdio.h>
#include <sys/sdt.h>

void greet(const char *name) {
  DTRACE_PROBE1(greeting, live, name);
  printf("hello, %s\n", name);
}

// Hidden and not called: --gc-sections drops it.
__attribute__((visibility("hidden"))) void unused_greeting(int number) {
  DTRACE_PROBE1(greeting, dead, number);
}
