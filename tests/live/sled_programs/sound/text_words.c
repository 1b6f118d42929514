// build: gcc -O2 -no-pie -fno-pie
// sleds: 1
// what: text in the data of a program at a fixed address is no table of addresses
#include <stdio.h>
#include <sys/sdt.h>
__attribute__((noinline)) int f(int x) { DTRACE_PROBE1(c, f, x); return x * 3 + 1; }
const char names[][16] = {"abcdefgh@", "ijklmnop\x11\x11@", "qrstuvwx\x12\x11@"};
int main(void) { printf("%d %s\n", f(2), names[0]); return 0; }
