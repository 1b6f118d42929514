#include <stdio.h>
extern volatile int first, second;
int f(int);
int g(int) __attribute__((weak));
int main(void) {
  int sum = 0;
  for (int i = 0; i < 5; i++) sum += f(i) + (g ? g(i) != 0 : 0);
  printf("first %d second %d sum %d\n", first, second, sum);
  return 0;
}
