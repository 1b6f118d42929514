/* For each line of input: some loops, and how often each guarded block ran. */
#include <stdio.h>
#include <string.h>

#include "checks.h"

int main(void) {
  char line[80];
  while (fgets(line, sizeof line, stdin) != NULL) {
    memset(behind_guard, 0, sizeof behind_guard);
    printf("sum %ld behind", pass(5));
    for (int i = 0; i < KINDS; ++i) printf(" %ld", behind_guard[i]);
    printf("\n");
    fflush(stdout);
  }
  return 0;
}
