#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
long code_start(long);
void code_end(void);
int main(void) {
  char *p = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(p, (char *)code_start, (size_t)((char *)code_end - (char *)code_start));
  printf("%ld %ld\n", code_start(3), ((long (*)(long))p)(4));
  return 0;
}
