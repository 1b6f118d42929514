/* legacy_speed N: hits one probe with one argument N times; prints the nanoseconds of one hit. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../fixtures/legacy.h"

__attribute__((noinline)) static long work(long number) {
#ifndef NO_PROBE
  LEGACY_PROBE1(old, hit, number);
#endif
  return number + 1;
}

int main(int argc, char **argv) {
  const long n = argc > 1 ? strtol(argv[1], NULL, 10) : 1000000;
  struct timespec start, end;
  long sum = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (long i = 0; i < n; ++i) sum += work(i);
  clock_gettime(CLOCK_MONOTONIC, &end);
  const double seconds = (double)(end.tv_sec - start.tv_sec) +
                         (double)(end.tv_nsec - start.tv_nsec) / 1e9;
  printf("nanoseconds %.1f %ld\n", seconds / (double)n * 1e9, sum);
  return 0;
}
