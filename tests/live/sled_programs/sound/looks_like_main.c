#include <stdio.h>
int f(int);
int never(int);
int main(void) { printf("%d %d %d\n", f(1), f(-1), never(1)); return 0; }
