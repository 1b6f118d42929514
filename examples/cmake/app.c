#include <stdio.h>
#include <sys/sdt.h>

// Nobody calls it: --gc-sections drops the code, and lld keeps the note.
void unused(int n) { STAP_PROBE1(app, unused, n); }

int main(int argc, char** argv) {
  (void)argv;
  STAP_PROBE1(app, start, argc);
  puts("done");
  return 0;
}
